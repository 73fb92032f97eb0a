"""`made train`: one configuration trained on many seeds, with checkpoints, records and pictures."""
