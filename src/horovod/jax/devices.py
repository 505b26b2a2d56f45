"""On which devices collectives run, and how arrays reach the engine."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


class TransferMode(Enum):
    """How arrays of a collective reach the engine."""

    DIRECT = "the engine takes them where they are"
    HOST_COPY = "they are copied to the host's memory, and the results back"


def transfer_mode_on(platform: str) -> TransferMode:
    """Return how collectives run on a platform.

    Args:
        platform: as devices call it, or programs that are lowered for it: cpu, gpu, cuda, rocm ...

    Raises:
        NotImplementedError: they do not; the message says what to do instead.
    """
    if platform == "cpu":
        return TransferMode.DIRECT
    if platform in ("gpu", "cuda", "rocm"):
        return TransferMode.HOST_COPY
    raise NotImplementedError(
        "horovod.jax runs on CPUs and, with copies, on GPUs; use JAX_PLATFORMS=cpu, or "
        f"jax.distributed and lax.psum on {platform.upper()}"
    )


def check_devices(context: Any) -> None:
    """Refuses a program over several devices (decision 0040).

    Args:
        context: of a lowering rule.

    Raises:
        NotImplementedError: there are several; the message says what to do instead.
    """
    axes = context.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    count = mesh.size if mesh is not None else getattr(axes, "num_devices", None)
    if (count or 1) > 1:
        raise NotImplementedError(
            f"a collective of horovod.jax is in a program over {count} devices of this process; "
            "start one rank for each device instead, or call it outside of the sharded program"
        )


def devices_of(operands: Iterable[Any]) -> set[Any]:
    """The devices on which arrays of JAX lie; numbers and NumPy's arrays lie on none."""
    arrays = (operand for operand in operands if isinstance(operand, jax.Array))
    return {device for array in arrays for device in array.devices()}


def put_back(result: Any, array: Any) -> Any:
    """An array of JAX with these values, on the devices of another one, and sharded as it is.

    Where its sharding does not fit to the shape, each device gets the whole result.

    Args:
        result: an array of NumPy.
        array: of JAX; of NumPy, whose results stay NumPy's.
    """
    if isinstance(array, np.ndarray):
        return result[()]  # a scalar, if it has no dimensions
    if not (isinstance(array, jax.Array) and array.committed):
        return jax.device_put(result)
    sharding = array.sharding
    try:
        sharding.shard_shape(result.shape)
    except ValueError:
        mesh = jax.sharding.Mesh(sorted(array.devices(), key=lambda each: each.id), "all")
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.device_put(result, sharding)
