"""TODO made/agents/dreamer."""
