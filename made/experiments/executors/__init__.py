"""TODO made/experiments/executors."""
