"""Shared by all tests: the CPU, and no writing into the user's cache of compiled programs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MADE_CACHE", "")
