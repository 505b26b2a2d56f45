"""``horovod.run`` in cells: live output, readable errors, interrupts, and a next cell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path

    from kernels import Kernel, Shown

COLORS = re.compile(r"\x1b\[[0-9;]*m")

DEFINITIONS = """
import horovod
SCALE = 3

class Point:
    def __init__(self, x):
        self.x = x

def scaled(x):
    return Point(x * SCALE)

def waiting(file):
    import os, time
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor([scaled(1.0 + hvd.rank()).x]), op=hvd.Sum).item()
    print("before", total, os.getpid(), flush=True)
    end_at = time.monotonic() + 60
    while not os.path.exists(file):
        if time.monotonic() > end_at:
            raise TimeoutError("nobody has seen the output")
        time.sleep(0.01)
    return Point(total)
"""
TRAIN = "[isinstance(p, Point) and p.x for p in horovod.run(waiting, args=({!r},), num_proc=2)]"


def has_spoken(shown: Shown) -> bool:
    """Whether both ranks have printed."""
    return len(re.findall(r"\[[01]\]<stdout>:before", shown.stdout)) == 2


def test_output_of_ranks_is_in_the_cell_while_it_runs(kernel: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    assert not kernel.run(DEFINITIONS).error
    shown = kernel.run(TRAIN.format(str(file)), lambda shown: has_spoken(shown) and file.touch())
    assert shown.result == "[9.0, 9.0]", shown
    assert re.search(r"^\[1\]<stdout>:before 9.0", shown.stdout, re.MULTILINE)


def test_an_error_names_rank_cell_and_line(kernel: Kernel) -> None:
    shown = kernel.run(
        "def broken(values):\n"
        "    import horovod.torch as hvd\n"
        "    hvd.init()\n"
        "    if hvd.rank() == 1:\n"
        "        return values[hvd.rank() + 1]\n"
        "    hvd.barrier()\n"
        "horovod.run(broken, args=([1, 2],), num_proc=2)\n"
    )
    assert shown.error == "RankFailedError"
    text = COLORS.sub("", "\n".join(shown.traceback))
    assert "rank 1 on localhost raised an exception:" in text
    own, _, told = text.partition("rank 1 on localhost")
    assert re.search(
        r"Cell In\[\d+\], line 5, in broken\n    return values\[hvd.rank\(\) \+ 1\]", told
    )
    assert "IndexError: list index out of range" in told
    # IPython shows the innermost frame of horovod.run; the same traceback is not there once more.
    assert "horovod.run(broken, args=([1, 2],), num_proc=2)" in own
    assert text.count("horovod/runner/") == 1
    assert "IndexError" not in shown.stderr


def test_an_interrupt_ends_all_ranks_and_the_next_cell_works(
    kernel: Kernel, tmp_path: Path
) -> None:
    file = tmp_path / "seen"
    assert not kernel.run(DEFINITIONS).error
    cell = TRAIN.format(str(file))
    shown = kernel.run(cell, lambda shown: has_spoken(shown) and kernel.interrupt())
    assert shown.error == "KeyboardInterrupt", shown
    pids = [int(pid) for pid in re.findall(r"<stdout>:before 9.0 (\d+)", shown.stdout)]
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    file.touch()
    assert kernel.run(cell).result == "[9.0, 9.0]"
    left = kernel.run("import psutil; [c.cmdline() for c in psutil.Process().children(True)]")
    assert left.result == "[]"
