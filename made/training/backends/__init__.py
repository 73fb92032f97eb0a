"""TODO made/training/backends."""
