"""Bonuses as the authors' released code computes them, for comparison with the paper."""
