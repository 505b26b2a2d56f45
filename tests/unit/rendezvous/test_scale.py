"""A store that serves a thousand ranks, as all of them start at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import horovod
from horovod._rendezvous import StoreServer

SIZE = 1000
NUM_PROCESSES = 2
# 10 s is the promise on a machine of its own; tests share theirs.
PATIENCE_S = 60.0


@pytest.mark.slow
def test_a_thousand_clients_find_each_other(no_leak: None, secret: bytes) -> None:
    share = SIZE // NUM_PROCESSES
    program = str(Path(__file__).with_name("crowd.py"))
    source = str(Path(horovod.__file__).parent.parent)
    began_s = time.monotonic()
    with StoreServer(secret) as server:
        where = [server.address, str(server.port)]
        crowds = [
            subprocess.Popen(
                [sys.executable, program, *where, *map(str, (first, share, SIZE, PATIENCE_S))],
                stdout=subprocess.DEVNULL,
                stdin=subprocess.PIPE,
                env={"PYTHONPATH": source},
            )
            for first in range(0, SIZE, share)
        ]
        for crowd in crowds:
            assert crowd.stdin is not None
            with crowd.stdin:
                crowd.stdin.write(secret)
        for crowd in crowds:
            assert crowd.wait(PATIENCE_S) == 0
    print(f"{SIZE} clients were answered in {time.monotonic() - began_s:.1f} s")
