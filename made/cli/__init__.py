"""TODO made/cli."""
