"""TODO made/agents/impala."""
