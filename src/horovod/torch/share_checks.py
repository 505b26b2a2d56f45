"""What ranks with shares of one optimizer have to agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from horovod._native import Buffer
from horovod._rank.reduction import PLAIN_SUM, ReduceOp, Reduction
from horovod._train.optimizer_options import reduces
from horovod.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod.torch.share_states import PieceState


def check_states(
    group: Group, own: Sequence[PieceState], age: int, names: Sequence[str], call: tuple[str, str]
) -> None:
    """Refuse to go on where the states of the shares are not of one optimizer at one step.

    Collective; once for each job, before the first step in it, and after a load.

    Args:
        group: the ranks that share.
        own: the state of this rank's pieces.
        age: how many steps this rank has taken since its state was loaded.
        names: of all parameters.
        call: the name on which the ranks agree, and where the optimizer was made.

    Raises:
        UsageError: some pieces of a parameter have state and others have none, or there is state
            and the ages differ: the state of some shares is lost.
        HorovodInternalError: the job failed.
    """
    found = torch.zeros(2, len(names) + 1, dtype=torch.int64, device="cpu")
    for each in own:
        found[int(each.is_empty), each.piece.parameter] = 1
    found[:, -1] = torch.tensor([age, -age], device="cpu")
    _reduce(group, found, ReduceOp.MAX, *call).wait()
    greatest, least = int(found[0, -1]), -int(found[1, -1])
    differ = greatest != least and bool(found[0, :-1].any())
    torn = found[:, :-1].all(0).nonzero().reshape(-1).tolist()
    if not torn and not differ:
        return
    mine = "none" if all(each.is_empty for each in own) else "some"
    which = f"; of {len(torn)} parameters, the first is {names[torn[0]]}" if torn else ""
    raise UsageError(
        "shard_state=True: some ranks have the optimizer state of their shares and others have "
        f"none, or that of another step (this rank has {mine}{which}). Call load_state_dict() or "
        "load_shares() on all ranks; when ranks change, train with hvd.elastic.TorchState, whose "
        "commits keep all shares"
    )


def any_not_finite(
    group: Group, gradients: Iterable[torch.Tensor], name: str, call_site: str
) -> bool:
    """Return whether a gradient of any rank's share is infinite or NaN; collective.

    Args:
        group: the ranks that share.
        gradients: of this rank's pieces.
        name: what the ranks agree on.
        call_site: where the optimizer was made, for messages.

    Raises:
        HorovodInternalError: the job failed.
    """
    flags = [torch.isfinite(gradient).all() for gradient in gradients]
    found = torch.tensor([not all(map(bool, flags))], dtype=torch.int64, device="cpu")
    if reduces(group):
        _reduce(group, found, ReduceOp.MAX, name, call_site).wait()
    return bool(found)


def sum_over_ranks(group: Group, value: torch.Tensor, name: str, call_site: str) -> torch.Tensor:
    """Return the sum of a number of all ranks, on the CPU; collective.

    Args:
        group: the ranks that share.
        value: float64, of no dimension.
        name: what the ranks agree on.
        call_site: ``file:line`` of the caller.

    Raises:
        HorovodInternalError: the job failed.
    """
    total = value.detach().cpu().reshape(1).clone()
    if reduces(group):
        _reduce(group, total, ReduceOp.SUM, name, call_site).wait()
    return total.reshape(())


class WeightSum:
    """The sum of the weights of all ranks in one step, on its way.

    Args:
        group: the ranks that share.
        weight: of this rank, finite and at least 0.
        name: what the ranks agree on.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(self, group: Group, weight: float, name: str, call_site: str) -> None:
        self._sum = torch.tensor([weight], dtype=torch.float64, device="cpu")
        self._handle = _reduce(group, self._sum, ReduceOp.SUM, name, call_site)

    def wait(self) -> None:
        """Wait for the sum.

        Raises:
            HorovodInternalError: the job failed.
        """
        self._handle.wait()

    def total(self) -> float:
        """Return the sum that has been waited for.

        Raises:
            MismatchError: it is 0, so that there is no average.
        """
        total = float(self._sum)
        if total == 0.0:
            raise MismatchError("the weights of all ranks are 0: their gradients have no average")
        return total


def _reduce(group: Group, numbers: torch.Tensor, op: ReduceOp, name: str, call_site: str) -> Handle:
    dtype = str(numbers.dtype).removeprefix("torch.")
    view = (Buffer(numbers.data_ptr(), dtype, tuple(numbers.shape)),)
    reduction = PLAIN_SUM if op is ReduceOp.SUM else Reduction(op)
    return group.allreduce(
        view, view, reduction, name=name, prefix="shares", call_site=call_site, keep=numbers
    )
