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
    """Makes groups of gloo, one for each rank, that meet in the memory of this process."""

    def __init__(self) -> None:
        self._store = dist.HashStore()

    def make(self, rank: int, size: int, name: str = "gloo") -> Any:
        """Make the process group of a rank; waits for the other ranks."""
        store = dist.PrefixStore(name, self._store)
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
