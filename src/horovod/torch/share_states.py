"""Optimizer state in pieces: how it becomes whole, and how pieces are cut from other pieces.

State is per parameter a dict. Values with one number for each element are cut as the parameter is;
all others, such as the number of steps, belong to each piece as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from horovod._train import objects
from horovod._train.optimizer_options import reduces
from horovod._train.shares import Piece, copies_between
from horovod.errors import UsageError
from horovod.torch.calls import AllgatherCall
from horovod.torch.parameter_shares import laid_out_as, memory_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._rank.group import Group
    from horovod._train.shares import ShareBucket
    from horovod.torch.parameter_shares import ParameterShares

State = dict[str, Any]


@dataclass(frozen=True)
class PieceState:
    """The state of a piece.

    Attributes:
        piece: which elements.
        elements: values with a number for each of them, of one dimension, in memory order.
        others: all other values.
    """

    piece: Piece
    elements: dict[str, torch.Tensor] = field(default_factory=dict)
    others: State = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether there is no state, as before the first step."""
        return not (self.elements or self.others)


def states_of_pieces(
    shares: ParameterShares, state: dict[Any, State], keys: frozenset[str]
) -> list[PieceState]:
    """Return the state of this rank's pieces, without copies.

    Args:
        shares: says which these are.
        state: of an optimizer of the pieces.
        keys: of the values that are cut.
    """
    found = []
    for piece, tensor in zip(shares.pieces, shares.tensors, strict=True):
        of_piece = state.get(tensor, {})
        elements = {key: value for key, value in of_piece.items() if _is_cut(key, value, keys)}
        others = {key: value for key, value in of_piece.items() if key not in elements}
        found.append(PieceState(piece, elements, others))
    return found


def states_of_parameters(
    shares: ParameterShares, state: dict[int, State], keys: frozenset[str]
) -> list[PieceState]:
    """Return the state of whole parameters as that of pieces.

    Args:
        shares: the parameters.
        state: by the index of the parameter; those that have none may be missing.
        keys: of the values that are cut.

    Raises:
        UsageError: a value has not the shape of its parameter.
    """
    found = []
    for index, param in enumerate(shares.params):
        if not param.numel():
            continue
        piece = PieceState(Piece(index, 0, param.numel()))
        for key, value in state.get(index, {}).items():
            if not _is_cut(key, value, keys):
                piece.others[key] = value
                continue
            if value.shape != param.shape:
                raise UsageError(
                    f"the optimizer state {key!r} of {shares.names[param]} has the shape "
                    f"{tuple(value.shape)}, but the parameter has {tuple(param.shape)}"
                )
            like = torch.empty_strided(param.shape, param.stride(), device="meta")
            piece.elements[key] = laid_out_as(value.detach(), like)
        found.append(piece)
    return found


def cut(shares: ParameterShares, have: Sequence[PieceState]) -> list[State]:
    """Return the state of each of this rank's pieces, as copies.

    Args:
        shares: says which pieces these are.
        have: of all elements, cut in any way.

    Raises:
        UsageError: elements have no state where others have; the message says which.
    """
    names = [shares.names[param] for param in shares.params]
    copies = copies_between([each.piece for each in have], shares.pieces, names)
    sources: list[list[Any]] = [[] for _ in shares.pieces]
    for copy in copies:
        sources[copy.target].append(copy)
    states: list[State] = []
    for piece, of_piece in zip(shares.pieces, sources, strict=True):
        first = have[of_piece[0].source]
        for copy in of_piece[1:]:
            _check_alike(first, have[copy.source], names[piece.parameter])
        state = {key: _copied(value) for key, value in first.others.items()}
        for key in first.elements:
            parts = [
                have[c.source].elements[key][c.source_begin : c.source_begin + c.num_elements]
                for c in of_piece
            ]
            state[key] = torch.cat([part.detach() for part in parts])
        states.append(state)
    return states


def gather(
    group: Group, shares: ParameterShares, own: Sequence[PieceState], call: tuple[str, str]
) -> dict[int, State]:
    """Return the state of all parameters, on the CPU, from the pieces of all ranks; collective.

    Args:
        group: the ranks that share.
        shares, own: of this rank.
        call: the name on which the ranks agree, and ``file:line`` of the caller.

    Raises:
        UsageError: the pieces of a parameter do not fit together.
        HorovodInternalError: the job failed.
    """
    others = [
        (each.piece, {key: _copied(value) for key, value in each.others.items()}, _dtypes(each))
        for each in own
    ]
    everyones = objects.allgather_object(group, others, *call) if reduces(group) else [others]
    found: dict[int, tuple[State, dict[str, torch.dtype]]] = {}
    for piece, values, dtypes in (each for of_rank in everyones for each in of_rank):
        name = shares.names[shares.params[piece.parameter]]
        first = found.setdefault(piece.parameter, (values, dtypes))
        _check_alike(PieceState(piece, {}, first[0]), PieceState(piece, {}, values), name)
        if first[1] != dtypes:
            raise _differs(name, set(first[1]) ^ set(dtypes) or set(dtypes))
    states = {index: dict(values) for index, (values, _) in found.items()}
    for number, bucket in enumerate(shares.layout.buckets):
        keys = {
            (key, dtype)
            for index in bucket.parameters
            for key, dtype in found.get(index, ({}, {}))[1].items()
        }
        for key, dtype in sorted(keys, key=str):
            each = f"{call[0]}.{number}.{key}", call[1]
            whole = _gather_values(group, (shares, bucket), own, (key, dtype), each)
            _take_values(shares, bucket, found, states, key, dtype, whole)
    return {index: state for index, state in sorted(states.items()) if state}


def _gather_values(
    group: Group,
    place: tuple[ParameterShares, ShareBucket],
    own: Sequence[PieceState],
    value: tuple[str, torch.dtype],
    call: tuple[str, str],
) -> torch.Tensor:
    """Return one value of all parameters of a bucket, in its order."""
    (shares, bucket), (key, dtype) = place, value
    device = shares.params[bucket.parameters[0]].device
    share = torch.zeros(bucket.share_elements, dtype=dtype, device=device)
    first = shares.rank * bucket.share_elements
    members = set(bucket.parameters)
    for each in own:
        values = each.elements.get(key)
        if each.piece.parameter in members and values is not None and values.dtype == dtype:
            begin = bucket.place_of(each.piece) - first
            share[begin : begin + each.piece.num_elements] = values.detach()
    if not reduces(group):
        return share.cpu()
    name, call_site = call
    return AllgatherCall(group, name, "shared_state", call_site).run((share,))[0].cpu()


def _take_values(
    shares: ParameterShares,
    bucket: ShareBucket,
    found: dict[int, tuple[State, dict[str, torch.dtype]]],
    states: dict[int, State],
    key: str,
    dtype: torch.dtype,
    whole: torch.Tensor,
) -> None:
    for index, offset, size in zip(bucket.parameters, bucket.offsets, bucket.sizes, strict=True):
        if found.get(index, ({}, {}))[1].get(key) == dtype:
            param = shares.params[index]
            value = torch.empty_strided(param.shape, param.stride(), dtype=dtype, device="cpu")
            memory_order(value).copy_(whole[offset : offset + size])
            states[index][key] = value


def _is_cut(key: str, value: Any, keys: frozenset[str]) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.dim() > 0 or key in keys


def _dtypes(state: PieceState) -> dict[str, torch.dtype]:
    return {key: value.dtype for key, value in state.elements.items()}


def _check_alike(first: PieceState, second: PieceState, name: str) -> None:
    """Refuse pieces of one parameter that are not of the same step.

    Raises:
        UsageError: they have other values, or other values that belong to the whole piece.
    """
    if first.elements.keys() != second.elements.keys():
        raise _differs(name, first.elements.keys() ^ second.elements.keys())
    keys = first.others.keys() | second.others.keys()
    different = {key for key in keys if not _are_equal(first.others, second.others, key)}
    if different:
        raise _differs(name, different)


def _are_equal(first: State, second: State, key: str) -> bool:
    if key not in first or key not in second:
        return False
    a, b = first[key], second[key]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and bool(torch.equal(a.cpu(), b.cpu()))
    return bool(a == b)


def _differs(name: str, keys: Iterable[str]) -> UsageError:
    return UsageError(
        f"the shares of the optimizer state of {name} do not fit together: they differ in "
        f"{', '.join(sorted(map(repr, keys)))}, so they are of different steps or optimizers"
    )


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
