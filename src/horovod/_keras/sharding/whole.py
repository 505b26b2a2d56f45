"""Distributed optimizers in shares, as callbacks, files and states see them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from horovod._keras.reducing_optimizer import ReducingOptimizer
from horovod._rank import context
from horovod._train.objects import agree, broadcast_object
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_sharding(optimizer: object) -> bool:
    """Whether each rank has its share of the state of an optimizer."""
    return isinstance(optimizer, ReducingOptimizer) and optimizer.wrapping.shard_state


def mark_as_part(variable: Any) -> None:
    """Note on a variable that each rank has its share of what it holds."""
    variable._horovod_part = True


def refuse_parts(variables: Iterable[Any]) -> None:
    """Refuse to overwrite parts of a state by those of another rank.

    Raises:
        UsageError: a variable is a part; names it.
    """
    for variable in variables:
        if getattr(variable, "_horovod_part", False):
            raise UsageError(
                f"{variable.path} is a share of the state of an optimizer with shard_state=True: "
                "each rank has its own. Broadcast the variables of the model alone, and load "
                "states on each rank by hvd.load_model(filepath, shard_state=True)"
            )


def refuse_in_elastic_state(optimizer: object) -> None:
    """Refuse an optimizer whose shares would be lost with a rank.

    Raises:
        UsageError: it is such.
    """
    if is_sharding(optimizer):
        raise UsageError(
            "the elastic state of a Keras optimizer with shard_state=True is possible on JAX and "
            "PyTorch alone: leave shard_state out in elastic jobs on TensorFlow"
        )


@contextmanager
def whole_state(optimizer: Any) -> Iterator[None]:
    """Let an optimizer be saved inside of the block; collective.

    Args:
        optimizer: in shares; None for none.
    """
    if optimizer is None or not optimizer.built:
        yield
        return
    object.__setattr__(optimizer, "_whole", optimizer.gather())
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_whole")


def common_variables(optimizer: Any, variables: list[Any], root_rank: int) -> list[Any]:
    """Return the variables of an optimizer that all ranks can get from one of them; collective.

    Args:
        optimizer: distributed or not.
        variables: of it.
        root_rank: the rank whose values count.

    Raises:
        MismatchError: the state is in shares, and ranks have taken different numbers of steps, so
            their shares do not fit.
    """
    if not is_sharding(optimizer):
        return variables
    group = context.global_group()
    steps = int(optimizer.iterations.numpy())
    of_root = broadcast_object(group, steps, root_rank, "shard_state.steps")
    problem = "" if steps == of_root else (
        f"its optimizer has taken {steps} steps, that of rank {root_rank} {of_root}: with "
        "shard_state=True, each rank loads the model by hvd.load_model(filepath, shard_state=True)"
    )  # fmt: skip
    agree(group, problem, "BroadcastGlobalVariablesCallback")
    slots = optimizer._parts.slots
    return [variable for variable in variables if id(variable) not in slots]
