"""Shared by all tests: the CPU, programs that compile quickly and once, no writing into the user's cache of them."""

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

# Compiling is most of what the tests do: with these it takes a third to a half less, and their programs are small.
QUICK = ("--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false", "--xla_backend_optimization_level=0")


def _known(flags: str) -> bool:
    """Whether this jaxlib knows the flags: it ends a process that gives it others."""
    asked = [sys.executable, "-c", "import jax; jax.devices()"]
    return not subprocess.run(asked, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True).returncode


os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MADE_CACHE", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of PyTorch wait for each other in loops, and cores are taken
if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers have it from here
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = next(filter(_known, QUICK), "")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # what one test compiles, the others and other processes find
        os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="made-tests-")
        atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_finish():
    """Collect garbage seldom: traced programs are many live objects, and walking them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def level_0():
    """Programs of this process compile at the level of XLA_FLAGS. Those of `made` in other processes: at level 1."""
    from made.training import sharding

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {})
        yield


@pytest.fixture(scope="module")
def level_1():
    """Programs of this process compile as for users, so that their bits can be compared with another process's."""
    from made.training import sharding
    from made.training.backends import compiled_envs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": level})
        compiled_envs._batch_programs.cache_clear()
        yield
    compiled_envs._batch_programs.cache_clear()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Compiled programs are kept while the tests of a file run and shared by their processes, as they are for users."""
    import jax

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MADE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(scope="session")
def drawing() -> str:
    """The way of drawing control tasks. Without one a test is skipped, and the reason names the packages to install."""
    from made.envs.control import rendering

    try:
        return rendering.choose()
    except ValueError as error:
        pytest.skip(str(error))
