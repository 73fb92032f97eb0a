"""The command line: one dataclass for each command of `made`."""
