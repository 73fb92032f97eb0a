"""Several devices give what one gives: eight virtual ones, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from made.training import devices

HERE = Path(__file__).resolve().parent


def test_eight_devices_give_what_one_gives_up_to_the_order_of_sums():
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "MADE_CACHE": "",
        "PYTHONPATH": str(HERE.parent),
    }
    words = [sys.executable, str(HERE / "on_devices.py")]
    done = subprocess.run(words, env={**os.environ, **flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(" seeds: ") for line in done.stdout.splitlines())
    assert float(found["8"]) == 0.0, "seeds on devices of their own know nothing of each other"
    assert float(found["2"]) < 1e-6


def test_devices_that_are_not_there_or_cannot_be_filled_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: ["a device"])
    with pytest.raises(ValueError, match=r"^--devices 4, but there is 1 here: give 1\.$"):
        devices.mesh_of(4, 1, 32)
    monkeypatch.setattr(jax, "devices", lambda: ["a device"] * 8)
    for wrong in (0, 99):
        with pytest.raises(ValueError, match=rf"^--devices {wrong}, but there are 8 here: give 1 to 8\.$"):
            devices.mesh_of(wrong, 1, 32)
    with pytest.raises(ValueError, match="2 seeds of 6 environments cannot be spread evenly over 8 devices"):
        devices.mesh_of(8, 2, 6)
    assert devices.mesh_of(1, 2, 6) is None
