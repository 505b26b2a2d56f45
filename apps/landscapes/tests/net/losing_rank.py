"""``landscapes train`` whose rank 1 is killed in the middle of step 7 of the first generation."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import horovod.torch as hvd
from landscapes.cli import main
from landscapes.train import step

forward = step.Trainer._forward


def forward_or_die(trainer: step.Trainer, batch: Any) -> Any:
    """Die after the forward pass, when the other rank waits for gradients."""
    found = forward(trainer, batch)
    trainer.passes = getattr(trainer, "passes", 0) + 1
    if trainer.passes == 7 and hvd.rank() == 1 and hvd.elastic.generation() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return found


step.Trainer._forward = forward_or_die
sys.exit(main(sys.argv[1:]))
