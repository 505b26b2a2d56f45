"""Finds replicas that have diverged: on demand, or by samples while training."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from horovod._rank import context
from horovod._train import sampled_sync_check, sync_check
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.sync_check import Array
from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.tensors import dense

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike


@outside_of_graphs
def check_in_sync(
    values: torch.nn.Module
    | torch.optim.Optimizer
    | Mapping[str, Any]
    | Iterable[tuple[str, torch.Tensor]],
    process_set: ProcessSet = global_process_set,
) -> None:
    """Checks that tensors have the same bits on all ranks, and says which do not, and where.

    Every byte is read; one small operation compares all tensors. All ranks of the set must call it.

    Args:
        values: a module, for its parameters and buffers; an optimizer, for its state; a state
            dict, nested or not; or pairs of name and tensor, such as ``model.named_parameters()``.
            Any dtype and shape. Buffers may differ for good reason, as running statistics of
            BatchNorm do; then give ``model.named_parameters()``.
        process_set: the ranks that compare.

    Raises:
        ReplicasDivergedError: on all ranks, if a tensor differs in bits, dtype or shape, or is
            missing on some; it names the first tensors and the ranks that differ from the majority.
        UsageError: ``values`` is something else, or a tensor has no bytes that could be read.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.check_in_sync(model)
        >>> hvd.check_in_sync(optimizer)
    """
    site = call_site()
    arrays = [array_of(name, tensor) for name, tensor in _named_tensors(values)]
    sync_check.check_in_sync(group_of(process_set), arrays, site)


class SampledSyncCheck(sampled_sync_check.SampledSyncCheck[torch.Tensor]):
    """Samples the bytes of PyTorch parameters.

    Args:
        process_set, names, num_steps, sample_bytes: as of the base class.
    """

    @staticmethod
    def configured(process_set: ProcessSet, names: Mapping[torch.Tensor, str]) -> SampledSyncCheck:
        """A check as often as HOROVOD_CHECK_IN_SYNC_STEPS asks for."""
        return SampledSyncCheck(process_set, names, context.settings().check_in_sync_steps)

    def num_bytes(self, param: torch.Tensor) -> int:
        """The size of a parameter."""
        return param.numel() * param.element_size()

    def array(self, name: str, param: torch.Tensor, part: slice) -> Array:
        """Some bytes of a parameter."""
        return array_of(name, param, part)


def _named_tensors(values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(values, torch.nn.Module):
        yield from values.named_parameters()
        yield from values.named_buffers()
    elif isinstance(values, torch.optim.Optimizer):
        if getattr(values, "shard_state", False):
            raise UsageError(
                "check_in_sync cannot compare the state of an optimizer with shard_state=True, of "
                "which each rank has another share; check the parameters of the model"
            )
        yield from _state_of(values)
    elif isinstance(values, Mapping):
        yield from _leaves("", values)
    elif isinstance(values, Iterable) and not isinstance(values, torch.Tensor | str | bytes):
        yield from map(_checked_pair, values)
    else:
        raise UsageError(
            f"check_in_sync cannot take a {type(values).__name__}; give a module, an optimizer, a "
            "state dict, or pairs of name and tensor such as model.named_parameters()"
        )


def _state_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the state, by the name or else the number of their parameter."""
    names: Mapping[torch.Tensor, str] = getattr(optimizer, "_parameter_names", {})
    numbers = {
        param: str(number)
        for number, param in enumerate(
            param for options in optimizer.param_groups for param in options["params"]
        )
    }
    for key, state in optimizer.state.items():
        name = names.get(key) or numbers.get(key) or str(key)
        yield from _leaves(f"state.{name}", state)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts, lists and tuples; everything else is left out."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        yield from _leaves(f"{name}.{key}" if name else str(key), item)


def _checked_pair(pair: Any) -> tuple[str, torch.Tensor]:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], torch.Tensor):
        raise UsageError(
            f"check_in_sync got a {type(pair).__name__} where it needs a pair of name and tensor"
        )
    return str(pair[0]), pair[1]


def array_of(name: str, tensor: torch.Tensor, part: slice | None = None) -> Array:
    """The bytes of a tensor, or some of them."""
    if tensor.is_meta:
        raise UsageError(f"the tensor {name!r} is on the meta device and has no bytes to compare")
    layout = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if tensor.layout is not torch.strided:
        tensor, layout = tensor.to_dense(), f"{layout} {tensor.layout}"
    num_bytes = tensor.numel() * tensor.element_size()
    part = part or slice(0, num_bytes)

    def data() -> BytesLike:
        source, first = dense(tensor.detach()), part.start
        if not source.is_cpu:
            source = source.reshape(-1).view(torch.uint8)[part].cpu()
            first = 0
        address = source.data_ptr() + first
        memory: Any = (ctypes.c_char * (part.stop - part.start)).from_address(address)
        memory.owner = source  # so that the tensor lives as long as the view of it
        view: BytesLike = memory
        return view

    return Array(name, layout, part.stop - part.start, data)
