"""Density models of state-action pairs: counts in a window, factorized counts, a VAE."""
