"""One rank of test_jax_contract.py: runs every check, and prints their names."""

from __future__ import annotations

import sys
from pathlib import Path

import jax

sys.path.append(str(Path(__file__).parents[1] / "contract"))

from jax_api import run_all_checks
from jax_programs import compile_once

import horovod.jax as hvd

if __name__ == "__main__":
    compile_once()
    jax.config.update("jax_enable_x64", True)
    hvd.init()
    print("\n".join(run_all_checks(is_jitted=sys.argv[1] == "jitted")), flush=True)
    hvd.shutdown()
