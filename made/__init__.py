"""made: exploration in reinforcement learning by maximising deviation from explored regions."""

__version__ = "0.1.0"
