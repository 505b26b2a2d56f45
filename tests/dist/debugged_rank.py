"""A rank of a job in which somebody debugs rank 1: run by test_stdin_rank.py on every rank."""

import os
import sys

from horovod._rank import context

context.init()
rank = context.rank()
answer = 41
print(f"stdin of {rank} is a terminal: {sys.stdin.isatty()}", flush=True)
if rank == 1:
    breakpoint()
else:
    assert os.read(0, 1) == b""
context.global_group().barrier().wait(60)
print(f"{rank} ends with {answer}")
