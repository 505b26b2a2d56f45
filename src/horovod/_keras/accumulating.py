"""Which optimizers of Keras can take a step for the passes of a global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._train.process_set import global_process_set
from horovod._train.reduce_op import Average
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._keras.reducing_optimizer import ReducingOptimizer

__all__ = ["check_accumulates"]


def check_accumulates(optimizer: ReducingOptimizer) -> None:
    """Refuse an optimizer that cannot take a step by the mean over several passes.

    Raises:
        UsageError: it cannot, or takes a step for several batches itself.
    """
    settings = optimizer.wrapping.settings
    if settings.op != Average:
        raise UsageError(
            "global_batch needs op=Average: a step is the mean over the samples of all ranks; "
            "leave op of DistributedOptimizer out"
        )
    if settings.process_set.process_set_id != global_process_set.process_set_id:
        raise UsageError(
            "global_batch with a process set: a step is the mean over the samples of all ranks; "
            "leave process_set of DistributedOptimizer out"
        )
    for name, passes in (
        ("backward_passes_per_step", optimizer.wrapping.passes),
        ("gradient_accumulation_steps", getattr(optimizer, "gradient_accumulation_steps", 1) or 1),
    ):
        if passes > 1:
            raise UsageError(
                f"{name}={passes} with global_batch, which says how many passes a step has: leave "
                f"{name} out"
            )
    if hasattr(optimizer, "inner_optimizer"):
        raise UsageError(
            "global_batch with a LossScaleOptimizer, which mixed_float16 needs: gradients would be "
            "unscaled in each pass; use mixed_bfloat16, or leave global_batch out"
        )
    if optimizer.wrapping.shard_state:
        raise UsageError(
            "global_batch with shard_state=True: gradients in shares have no weight; leave "
            "shard_state or global_batch out"
        )
