"""A rank that comes when it is let: python gated_rank.py FOLDER.

It opens the pipe FOLDER/RANK, which blocks until the test opens the other end, then does one
allreduce.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM


def main() -> None:
    gate = Path(sys.argv[1]) / os.environ["HOROVOD_RANK"]
    if gate.exists():
        gate.read_bytes()
    context.init()
    group = context.global_group()
    values = np.full(4, group.rank + 1, np.float32)
    buffer = Buffer.from_array(values)
    group.allreduce([buffer], [buffer], PLAIN_SUM, name="x", waits_next=True).wait(60)
    print(f"rank {group.rank} of {group.size} has {values[0]:g}", flush=True)
    if (late := gate.with_name(gate.name + ".end")).exists():
        late.read_bytes()
    context.shutdown()


if __name__ == "__main__":
    main()
