"""TODO made/envs."""
