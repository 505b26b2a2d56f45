"""A worker of an elastic job that logs the size of the job in each step, until there is a file."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod._train.interface import log
from horovod.common.elastic import ObjectState


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


@run
def train(state: ObjectState) -> None:
    print(f"rank {context.rank()} of {context.size()} is {os.getpid()}", flush=True)
    while not broadcast_object(os.path.exists(sys.argv[1])):
        log(size=context.size())
        time.sleep(0.01)
        state.commit()


context.init()
train(ObjectState(broadcast_object, lambda: context.global_group().rank))
