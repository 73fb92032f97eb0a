"""A Ray sweep whose workers are killed stores every job once."""

import pytest

from tests.reliability import worker_loss


@pytest.mark.reliability
def test_a_ray_sweep_completes_every_job_once_while_workers_are_killed(check):
    pytest.importorskip("ray")
    check("ray_sweep", worker_loss.ray_sweep_with_kills)
