"""The pieces of parameters that this rank steps, as tensors over the memory of the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._native import Buffer
from horovod._train.optimizer_options import reduces
from horovod._train.shares import Extent, Piece, Shares, divide
from horovod._train.waiting import wait_for_all
from horovod.errors import MismatchError, UsageError
from horovod.torch.share_probe import NOT_OPTIONS
from horovod.torch.tensors import dtype_name, mark_written, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod._train.shares import ShareBucket

Groups = list[dict[str, Any]]


class ParameterShares:
    """Divides the parameters of an optimizer, and keeps the pieces of this rank.

    A piece is a tensor of one dimension over the memory of its parameter, so that an optimizer that
    steps it changes the parameter. Its elements are in the order in which they are in memory.

    Args:
        params: of the optimizer, in its order.
        names: of the parameters.
        call_site: where the optimizer was made, for messages.

    Attributes:
        params, names: as given; :meth:`add` appends.
        layout: which elements are in which share.
        rank: whose share this is.
        pieces: what is in it.
        tensors: of each piece.

    Raises:
        UsageError: a parameter has no memory that can be cut.
    """

    layout: Shares

    def __init__(
        self, params: Iterable[torch.Tensor], names: Mapping[torch.Tensor, str], call_site: str
    ) -> None:
        self.params: list[torch.Tensor] = []
        self.names = names
        self.rank = 0
        self.pieces: tuple[Piece, ...] = ()
        self.tensors: list[torch.Tensor] = []
        self._call_site = call_site
        self._alone: set[int] = set()
        self._addresses: list[int] = []
        self.add(params, alone=False)
        self.lay_out(1, 0)

    @property
    def place(self) -> tuple[int, int]:
        """How many ranks share, and whose the pieces are."""
        return self.layout.num_ranks, self.rank

    def add(self, params: Iterable[torch.Tensor], *, alone: bool = True) -> list[Piece]:
        """Append parameters; :meth:`lay_out` must follow.

        Args:
            params: new ones.
            alone: whether each has a bucket of its own. So has a parameter that is not trained now,
                as its gradients may come at any time.

        Returns:
            All of their elements.

        Raises:
            UsageError: one of them has no memory that can be cut.
        """
        added = list(params)
        for param in added:
            _check(param, self.names[param])
        for param in added:
            if alone or not param.requires_grad:
                self._alone.add(len(self.params))
            self.params.append(param)
        first = len(self.params) - len(added)
        return [Piece(i, 0, p.numel()) for i, p in enumerate(added, first) if p.numel()]

    def lay_out(self, num_ranks: int, rank: int) -> None:
        """Divide all parameters among some ranks, and make the pieces of one of them.

        Pieces of the same elements stay the same tensors.
        """
        devices = list(dict.fromkeys(param.device for param in self.params))
        extents = [
            Extent(param.numel(), param.element_size(), self._kind_of(index, param, devices))
            for index, param in enumerate(self.params)
        ]
        # Gradients are ready in about the reverse order of the parameters.
        self.layout = divide(extents, num_ranks, order=reversed(range(len(extents))))
        self.rank = rank
        known = dict(zip(self.pieces, self.tensors, strict=True))
        self.pieces = self.layout.pieces(rank)
        self.tensors = [self._view(piece) for piece in self.pieces]
        for place, piece in enumerate(self.pieces):
            if (tensor := known.get(piece)) is not None:  # the key of its state
                tensor.data = self.tensors[place]
                self.tensors[place] = tensor
        self._addresses = [param.data_ptr() for param in self.params]

    def refresh(self) -> None:
        """Follow parameters whose memory the program has replaced, for example ``p.data = …``."""
        addresses = [param.data_ptr() for param in self.params]
        if addresses == self._addresses:
            return
        for param in self.params:
            _check(param, self.names[param])
        for piece, tensor in zip(self.pieces, self.tensors, strict=True):
            tensor.data = self._view(piece)
        self._addresses = addresses

    def members_of(self, bucket: ShareBucket) -> tuple[torch.Tensor, ...]:
        """Return the parameters that are in a bucket."""
        return tuple(self.params[index] for index in bucket.parameters)

    def tensors_of(self, bucket: ShareBucket) -> list[tuple[Piece, torch.Tensor]]:
        """Return the pieces of this rank that are in a bucket."""
        wanted = set(bucket.parameters)
        pairs = zip(self.pieces, self.tensors, strict=True)
        return [(piece, tensor) for piece, tensor in pairs if piece.parameter in wanted]

    def groups_of_pieces(self, groups: Groups) -> Groups:
        """Return the groups of an optimizer with this rank's pieces in place of the parameters."""
        indices = {param: index for index, param in enumerate(self.params)}
        by_parameter: dict[int, list[torch.Tensor]] = {}
        for piece, tensor in zip(self.pieces, self.tensors, strict=True):
            by_parameter.setdefault(piece.parameter, []).append(tensor)
        return [
            {
                "params": [
                    t for param in group["params"] for t in by_parameter.get(indices[param], ())
                ],
                **options_of(group),
            }
            for group in groups
        ]

    def take_whole_gradients(self) -> None:
        """Give the pieces the gradients that their parameters have; of a job of one rank."""
        for piece, tensor in zip(self.pieces, self.tensors, strict=True):
            param = self.params[piece.parameter]
            gradient = None if param.grad is None else param.grad.detach()
            if gradient is not None:
                if gradient.layout is not torch.strided:
                    gradient = gradient.to_dense()
                gradient = laid_out_as(gradient, param)[piece.begin : piece.end]
            tensor.grad = gradient

    def drop_gradients(self) -> None:
        """Leave all pieces without gradient."""
        for tensor in self.tensors:
            tensor.grad = None

    def start_gathering(self, group: Group, name: str) -> Callable[[], None]:
        """Start to bring all ranks' pieces into the parameters.

        Args:
            group: the ranks that share.
            name: on which the ranks agree.

        Returns:
            What waits until the parameters are whole. It raises HorovodInternalError if the job
            has failed, and then parameters hold pieces of different steps.
        """
        if not reduces(group):
            return _nothing
        started = []
        for number, bucket in enumerate(self.layout.buckets):
            if bucket.num_elements:
                started.append((bucket, self._gather(group, bucket, f"{name}.{number}")))

        def finish() -> None:
            _wait_for(handle for _, handle in started)
            for bucket, _ in started:
                mark_written(self.members_of(bucket))

        return finish

    def _gather(self, group: Group, bucket: ShareBucket, name: str) -> Handle:
        inputs, outputs = self._buffers(bucket)
        return group.allgather(
            inputs,
            outputs,
            name=name,
            call_site=self._call_site,
            keep=memory_of(self.members_of(bucket)),
        )

    def _buffers(self, bucket: ShareBucket) -> tuple[list[Buffer], list[Buffer]]:
        """View the memory of all ranks' pieces: what this rank sends, and where all of it goes.

        All ranks give as many inputs; those with fewer pieces fill up with empty ones.
        """
        everyones = [
            [self._buffer(piece) for piece in bucket.pieces(rank)]
            for rank in range(bucket.num_ranks)
        ]
        nothing = Buffer(0, dtype_name(self.params[bucket.parameters[0]].dtype) or "", (0,))
        most = max(map(len, everyones))
        for of_rank in everyones:
            of_rank += [nothing] * (most - len(of_rank))
        outputs = [of_rank[place] for place in range(most) for of_rank in everyones]
        return everyones[self.rank], outputs

    def _buffer(self, piece: Piece) -> Buffer:
        param = self.params[piece.parameter]
        address = param.data_ptr() + piece.begin * param.element_size()
        return Buffer(address, dtype_name(param.dtype) or "", (piece.num_elements,))

    def _view(self, piece: Piece) -> torch.Tensor:
        return memory_order(self.params[piece.parameter])[piece.begin : piece.end]

    def _kind_of(self, index: int, param: torch.Tensor, devices: Sequence[torch.device]) -> str:
        kind = f"{param.dtype}, {param.device.type} {devices.index(param.device)}"
        return f"{kind}, alone {index}" if index in self._alone else kind


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group of parameters."""
    return {key: value for key, value in group.items() if key not in NOT_OPTIONS}


def memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """View all elements of a tensor without gaps in one dimension, as they are in memory."""
    plain = tensor.detach()
    return plain.as_strided((plain.numel(),), (1,), plain.storage_offset())


def laid_out_as(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the elements in the memory order of another tensor of the same shape.

    Args:
        tensor: copied only if its order is another one.
        like: has no gaps.
    """
    if tensor.stride() != like.stride():
        tensor = torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
    return memory_order(tensor)


def is_without_gaps(tensor: torch.Tensor) -> bool:
    """Return whether each element has a place of its own and there is no gap between them."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _check(param: torch.Tensor, name: str) -> None:
    problem = ""
    if param.layout is not torch.strided:
        problem = f"is sparse ({param.layout})"
    elif not param.is_cpu:
        problem = f"is on {param.device} instead of the CPU"
    elif not param.is_floating_point() or dtype_name(param.dtype) is None:
        problem = f"has the dtype {param.dtype}"
    elif param.numel() and not is_without_gaps(param):
        problem = "has gaps in its memory, or elements that share it"
    if problem:
        raise UsageError(
            f"shard_state=True: parameter {name} {problem}, and cannot be cut into shares; use the "
            "optimizer without shard_state, or give this parameter an optimizer of its own"
        )


def _wait_for(handles: Iterable[Handle]) -> None:
    try:
        wait_for_all(handles)
    except MismatchError as error:
        raise MismatchError(
            f"the shares of the parameters cannot be gathered: {error}. Every rank steps a share, "
            "so with shard_state=True all ranks must take the same number of steps: hvd.join() "
            "cannot stand in for a rank"
        ) from error


def _nothing() -> None:
    """The parameters are whole already."""
