"""One rank of test_mxnet_training.py: runs the named cases, or all, and prints their names."""

from __future__ import annotations

import sys

import mxnet_cases
import mxnet_training

import horovod.mxnet as hvd

if __name__ == "__main__":
    cases = [*mxnet_training.CASES, *mxnet_cases.CASES]
    wanted = sys.argv[1:] or [case.__name__ for case in cases]
    hvd.init()
    for case in cases:
        if case.__name__ in wanted:
            case(hvd.rank(), hvd.size())
            print(case.__name__, flush=True)
    hvd.shutdown()
