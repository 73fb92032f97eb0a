"""Compiled programs on disk, shared by every process that is told the same folder."""

import os
from pathlib import Path


def use_compilation_cache() -> None:
    """Compiled programs outlive the process. MADE_CACHE names another folder, or switches it off when empty."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "made"
    folder = os.environ.get("MADE_CACHE", str(default))
    if not folder:
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
