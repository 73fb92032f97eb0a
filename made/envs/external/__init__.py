"""TODO made/envs/external."""
