"""Plug-ins for other people's libraries; each module imports what it adapts to."""
