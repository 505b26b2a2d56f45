"""One rank of test_jax_training.py: runs the named cases, or all, and prints their names.

After the word ``copied``, all collectives take the way of arrays on a GPU.
"""

from __future__ import annotations

import sys

import jax
import jax_cases
import jax_derivatives
import jax_local_steps
import jax_shares
import jax_training
from jax_copied import copy_all_arrays
from jax_programs import compile_once

import horovod.jax as hvd

if __name__ == "__main__":
    compile_once()
    jax.config.update("jax_enable_x64", True)
    cases = [
        *jax_derivatives.CASES, *jax_training.CASES, *jax_cases.CASES, *jax_shares.CASES,
        *jax_local_steps.CASES,
    ]  # fmt: skip
    words = sys.argv[1:]
    if words[:1] == ["copied"]:
        copy_all_arrays()
        words = words[1:]
    wanted = words or [case.__name__ for case in cases]
    hvd.init()
    for case in cases:
        if case.__name__ in wanted:
            case(hvd.rank(), hvd.size())
            print(case.__name__, flush=True)
    hvd.shutdown()
