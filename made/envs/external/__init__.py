"""Environments of other packages: Gymnasium, EnvPool and Farama's MiniGrid."""
