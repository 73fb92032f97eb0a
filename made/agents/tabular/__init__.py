"""TODO made/agents/tabular."""
