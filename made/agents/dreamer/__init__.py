"""Dreamer: a world model, and an actor-critic trained on imagined trajectories."""
