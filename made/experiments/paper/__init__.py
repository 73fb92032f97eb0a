"""The experiments of the paper: one module with an `EXPERIMENT` for each."""
