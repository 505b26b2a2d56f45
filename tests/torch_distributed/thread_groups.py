"""Process groups of ranks that are threads, of our backend and of gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from horovod.torch.distributed import ProcessGroupHorovod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.group import Group

TIMEOUT = timedelta(seconds=30)


def horovod_group(
    group: Group, timeout: timedelta = TIMEOUT, label: str = "world"
) -> ProcessGroupHorovod:
    """Make the process group of a rank; nothing ends with it."""
    return ProcessGroupHorovod(group, dist.HashStore(), label, timeout, lambda reason: None)


class GlooGroups:
    """Groups of gloo, one for each rank, that meet in the memory of this process.

    They stay until the process ends. The end of one in PyTorch 2.7 holds Python's lock and joins a
    thread of the group that may be waiting for that lock, to drop the last operation.
    """

    def __init__(self) -> None:
        self._store = dist.HashStore()
        self._num_failures = 0
        self._made: dict[tuple[int, ...], Any] = {}

    def of(self, rank: int, size: int) -> Any:
        """Return the process group of a rank; the first time, wait for the other ranks."""
        key = (rank, size, self._num_failures)
        if key not in self._made:
            self._made[key] = self._make(rank, size)
        return self._made[key]

    def renew(self) -> None:
        """Make other groups from now on: in those that exist, ranks may wait for each other."""
        self._num_failures += 1

    def _make(self, rank: int, size: int) -> Any:
        store = dist.PrefixStore(f"{size} ranks, {self._num_failures}", self._store)
        group = dist.ProcessGroup(store, rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=TIMEOUT)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return group


def differences(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> list[str]:
    """Return where two lists of tensors differ in number, dtype, shape or value."""
    if len(mine) != len(theirs):
        return [f"{len(mine)} tensors instead of {len(theirs)}"]
    return [
        f"tensor {index} of {tuple(expected.shape)}: {tensor} instead of {expected}"
        for index, (tensor, expected) in enumerate(zip(mine, theirs, strict=True))
        if tensor.dtype != expected.dtype or not torch.equal(tensor, expected)
    ]
