"""TODO made/experiments/paper."""
