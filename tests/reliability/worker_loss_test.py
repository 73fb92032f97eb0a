"""Runs on Ray whose workers are killed are stored once."""

import pytest

from tests.reliability import worker_loss


@pytest.mark.reliability
def test_every_run_is_stored_once_while_ray_workers_are_killed(check):
    pytest.importorskip("ray")
    check("ray_sweep", worker_loss.ray_with_kills)
