"""The commands of `made`: each is a dataclass whose fields are its options and whose `main` does it."""
