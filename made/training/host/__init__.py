"""Bonuses for training loops in NumPy or PyTorch: `HostBonus` and `HostRollout`."""
