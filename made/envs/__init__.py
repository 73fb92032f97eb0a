"""Environments: grids, tabular MDPs, control tasks and tasks of other packages, by name in `registry`."""
