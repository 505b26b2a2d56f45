"""Starting all ranks from the same state: parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from horovod._train import objects
from horovod._train.call_site import call_site
from horovod._train.process_set import global_process_set, group_of
from horovod._train.same_parameters import check_same_parameters
from horovod._train.waiting import wait_for_all
from horovod.errors import UsageError
from horovod.torch.calls import BroadcastCall
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import hand_over
from horovod.torch.local_steps import LocalStepsOptimizer
from horovod.torch.sharded_optimizer import ShardedOptimizer
from horovod.torch.tensors import dense, memory_of, parameter_of, views

if TYPE_CHECKING:
    from horovod._rank.group import Group


@outside_of_graphs
def broadcast_parameters(params: Mapping[str, torch.Tensor] | list[Any], root_rank: int) -> None:
    """Overwrites tensors on all ranks with those of the root.

    Args:
        params: ``model.state_dict()`` or another mapping of names to tensors, or a list of tensors
            or of ``(name, tensor)`` pairs such as ``list(model.named_parameters())``. Unnamed
            tensors must stand in the same order on all ranks. Dense; shapes and dtypes as on the
            root.
        root_rank: the rank whose values count.

    Raises:
        UsageError: ``params`` is something else.
        MismatchError: the ranks do not have the same tensors; the message names those that differ.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    group = group_of(global_process_set)
    site = call_site()
    named = _named_tensors(params)
    _check_alike(group, named, site)
    started = []
    for name, tensor in named:
        sent = dense(tensor.detach())
        call = BroadcastCall(group, name, "broadcast", site, root_rank)
        started.append((call.submit(sent, sent), sent, tensor))
    wait_for_all(handle for handle, _, _ in started)
    with torch.no_grad():
        for handle, sent, tensor in started:
            hand_over(handle, sent)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)


def _check_alike(group: Group, named: Sequence[tuple[str | None, torch.Tensor]], site: str) -> None:
    names = [name for name, _ in named if name is not None]
    check_same_parameters(
        group,
        [
            parameter_of(str(place) if name is None else name, tensor)
            for place, (name, tensor) in enumerate(named)
        ],
        f"broadcast.{min(names)}.parameters" if names else None,
        site,
    )


def _named_tensors(
    params: Mapping[str, torch.Tensor] | list[Any],
) -> list[tuple[str | None, torch.Tensor]]:
    pairs: list[tuple[Any, Any]]
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise UsageError(
            f"params is a {type(params).__name__}; give model.state_dict(), or a list of tensors "
            "or of (name, tensor) pairs such as list(model.named_parameters())"
        )
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[1], torch.Tensor):
            what = type(pair[-1]).__name__
            raise UsageError(f"parameter {pair[0]!r} is a {what}, not a torch.Tensor")
    return pairs


@outside_of_graphs
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives the optimizers of all ranks the options and the state of the root's.

    The root's optimizer is only read, and no step is taken anywhere. Plain values keep their exact
    Python type, tensors their dtype and memory layout.

    Args:
        optimizer: any of torch.optim but LBFGS, or a DistributedOptimizer; with the same groups of
            parameters on all ranks. With ``shard_state=True``, only before there is any state.
        root_rank: the rank whose state counts.
        model: not needed; accepted for older scripts.

    Raises:
        UsageError: the optimizer is LBFGS, whose state is not one of single parameters.
        HorovodInternalError: the optimizers differ in their groups, or the job failed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("broadcast_optimizer_state does not support torch.optim.LBFGS")
    group = group_of(global_process_set)
    site = call_site()
    is_root = group.ranks[group.rank] == root_rank
    if isinstance(optimizer, ShardedOptimizer):
        objects.agree(group, _why_not_sent(optimizer), "broadcast_optimizer_state", site)
    structure, tensors = _describe(optimizer) if is_root else (None, [])
    structure = objects.broadcast_object(group, structure, root_rank, "optimizer_state", site)
    assert structure is not None
    objects.agree(group, _difference(optimizer, structure), "broadcast_optimizer_state", site)
    if not is_root:
        params = _parameters(optimizer)
        tensors = [slot.allocate(params) for slot in structure.slots]
    _broadcast_tensors(group, tensors, root_rank, site)
    if not is_root:
        _apply(
            optimizer, structure, [s.fill(t) for s, t in zip(structure.slots, tensors, strict=True)]
        )
    if isinstance(optimizer, LocalStepsOptimizer):
        optimizer.broadcast_outer_state(root_rank, site)


def _why_not_sent(optimizer: ShardedOptimizer) -> str:
    """Return why the state of an optimizer with shares cannot be sent; empty if there is none."""
    if not optimizer.has_state():
        return ""
    return (
        "with shard_state=True the root has only its share of the optimizer state; broadcast that "
        "of the plain optimizer before it is wrapped, or call load_state_dict() on every rank"
    )


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in a structure that is sent as a pickle.

    Attributes:
        index: its place among all of them.
        shape, stride, dtype: of the tensor.
        param: the number of the parameter whose state it is; None if it is nobody's.
        on_gpu: whether it is on a GPU: on each rank that of its parameter, or the current one.
    """

    index: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    param: int | None
    on_gpu: bool

    def allocate(self, params: Sequence[torch.Tensor]) -> torch.Tensor:
        """Makes a tensor for the received values, beside this rank's parameter."""
        device = torch.device("cuda") if self.on_gpu else torch.device("cpu")
        if self.on_gpu and self.param is not None and params[self.param].is_cuda:
            device = params[self.param].device
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def fill(self, received: torch.Tensor) -> torch.Tensor:
        """The received values in the layout that the root has."""
        if received.stride() == self.stride or not received.numel():
            return received
        strided = torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=received.device
        )
        return strided.copy_(received)


@dataclass(frozen=True)
class _Structure:
    """An optimizer without its tensors.

    Attributes:
        options: for each group everything but its parameters.
        group_sizes: the number of parameters in each group.
        state: of parameters, by their index over all groups.
        other_state: what is kept under keys that are no parameters.
        slots: the tensors that are sent after this, in order.
    """

    options: list[dict[str, Any]]
    group_sizes: list[int]
    state: dict[int, Any]
    other_state: dict[Any, Any]
    slots: list[_Slot]


def _describe(optimizer: torch.optim.Optimizer) -> tuple[_Structure, list[torch.Tensor]]:
    slots: list[_Slot] = []
    tensors: list[torch.Tensor] = []

    def to_slot(value: Any, param: int | None = None) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        source = value.detach()
        sent = dense(source)
        # A layout with gaps or overlaps, as of an expanded tensor, cannot be written to.
        stride = source.stride() if _is_dense(source) else sent.stride()
        slots.append(
            _Slot(len(slots), tuple(value.shape), stride, value.dtype, param, value.is_cuda)
        )
        tensors.append(sent)
        return slots[-1]

    params = _parameters(optimizer)
    index_of = {id(param): index for index, param in enumerate(params)}
    options = [
        {key: _replace(value, to_slot) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    state: dict[int, Any] = {}
    other_state: dict[Any, Any] = {}
    for key, value in optimizer.state.items():
        if id(key) in index_of:
            index = index_of[id(key)]
            state[index] = _replace(value, partial(to_slot, param=index))
        elif not isinstance(key, torch.Tensor):
            other_state[key] = _replace(value, to_slot)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return _Structure(options, sizes, state, other_state, slots), tensors


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own and there is no gap between them."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _replace(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copies nested dicts, lists and tuples with every leaf changed; all else is a leaf."""
    if type(value) is dict:
        return {key: _replace(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(item, change) for item in value)
    return change(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _difference(optimizer: torch.optim.Optimizer, structure: _Structure) -> str:
    """Return why the root's state does not fit this optimizer, or an empty string."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != structure.group_sizes:
        return (
            f"its parameter groups hold {sizes} parameters, those of the root "
            f"{structure.group_sizes}"
        )
    return ""


def _broadcast_tensors(group: Group, tensors: Iterable[torch.Tensor], root: int, site: str) -> None:
    """Broadcast tensors as bytes: optimizers may keep dtypes that are never reduced.

    One operation for all on the CPU; those on GPUs may be on several, and go one by one.
    """
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
    on_cpu = [tensor for tensor in flat if tensor.is_cpu]
    parts = ([on_cpu] if on_cpu else []) + [[tensor] for tensor in flat if not tensor.is_cpu]
    started = []
    for number, part in enumerate(parts):
        buffers = views(part)
        handle = group.broadcast(
            buffers, buffers, root, name=f"optimizer_state.tensors.{number}",
            waits_next=len(parts) == 1, call_site=site, keep=memory_of(part),
        )  # fmt: skip
        started.append((handle, part[0]))
    wait_for_all(handle for handle, _ in started)
    for handle, tensor in started:
        hand_over(handle, tensor)


def _apply(
    optimizer: torch.optim.Optimizer, structure: _Structure, tensors: list[torch.Tensor]
) -> None:
    def from_slot(value: Any) -> Any:
        return tensors[value.index] if isinstance(value, _Slot) else value

    for group, options in zip(optimizer.param_groups, structure.options, strict=True):
        kept = {"params": group["params"]}
        group.clear()
        group.update(kept | {key: _replace(value, from_slot) for key, value in options.items()})
    params = _parameters(optimizer)
    optimizer.state.clear()
    for index, value in structure.state.items():
        optimizer.state[params[index]] = _replace(value, from_slot)
    for key, value in structure.other_state.items():
        optimizer.state[key] = _replace(value, from_slot)
