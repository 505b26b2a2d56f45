"""Ranks run the same programs: one compiles, the others take what it has compiled."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import jax
from jax._src import compiler


def compile_once() -> None:
    """From now on this process compiles no program that another of this test run has compiled.

    Processes take turns, so that two that come at the same time do not both compile.
    """
    folder = Path(os.environ["HVD_TEST_JAX_PROGRAMS"])
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compile_or_load = compiler.compile_or_get_cached
    threads = threading.Lock()
    processes = (folder / "turn").open("w")

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with threads:
            fcntl.flock(processes, fcntl.LOCK_EX)
            try:
                return compile_or_load(*args, **kwargs)
            finally:
                fcntl.flock(processes, fcntl.LOCK_UN)

    compiler.compile_or_get_cached = in_turn
