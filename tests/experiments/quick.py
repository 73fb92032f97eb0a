"""What stands for `run_batch` where a test is about who does a job, not about its numbers."""

import time

import numpy as np

from made.core.config import config_id
from made.core.trial import Record


def execute(trials, seeds, on_rows=None):
    """Two rows a lane that tell the configuration and the seed, after a moment in which others can come between."""
    time.sleep(0.02)
    numbers = [int(config_id(trial)[:6], 16) + seed for trial, seed in zip(trials, seeds, strict=True)]
    return [Record({"step": np.array([10, 20]), "share": np.array([0.5, n])}, {}) for n in numbers]
