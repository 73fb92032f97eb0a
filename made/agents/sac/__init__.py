"""TODO made/agents/sac."""
