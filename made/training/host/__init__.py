"""TODO made/training/host."""
