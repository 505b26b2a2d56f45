"""From the arguments of ``init_process_group`` and ``new_group`` to a group of the engine."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from horovod._rank.by_store import start_by_store
from horovod.errors import UsageError
from horovod.torch.distributed.call_sites import user_call_site
from horovod.torch.distributed.process_group import ProcessGroupHorovod


def create_group(options: Any, backend_options: Any = None) -> ProcessGroupHorovod:
    """Make the process group that PyTorch asks for.

    The group of all ranks shares the engine that ``hvd.init()`` has started, if it has; otherwise
    the ranks meet as the launcher or PyTorch's store says, and the engine ends with the last group
    of all ranks. Groups of some ranks are process sets of that engine. If the group of all ranks
    is of another backend, each group of this backend has an engine of its own.

    Args:
        options: the store, rank, size, timeout, name and global ranks of the group, as
            ``torch.distributed`` gives them to backends; no ranks are those of all.
        backend_options: ``pg_options`` of the caller; this backend has none.

    Raises:
        UsageError: there are options, or the ranks do not rise.
        StartError: a rank did not appear in time.
    """
    if backend_options is not None:
        raise UsageError(
            f"pg_options={backend_options!r}: the backend horovod has no options; its settings are "
            "those of horovodrun and of the HOROVOD_ variables"
        )
    ranks = list(options.global_ranks_in_group)
    world = dist.group.WORLD
    if ranks and isinstance(world, ProcessGroupHorovod):
        return _create_part(world, ranks, options)
    timeout_s = options.timeout.total_seconds()
    lease = start_by_store(options.store, options.group_rank, options.group_size, timeout_s)
    label = _label_of(options) if ranks else "world"
    return ProcessGroupHorovod(lease.group, options.store, label, options.timeout, lease.close)


def _create_part(world: ProcessGroupHorovod, ranks: list[int], options: Any) -> ProcessGroupHorovod:
    """Make a group of some ranks, a process set of their own; only they come here."""
    if ranks != sorted(ranks):
        raise UsageError(f"new_group(ranks={ranks}): the ranks have to rise")
    label = _label_of(options)
    name = f"torch.{label}"
    left_sites: list[str] = []
    group = world.engine_group.add_by_members(ranks, name=name, call_site=user_call_site())

    def leave(reason: str) -> None:
        """Leave the set, which ends when all members have; a second time, do nothing."""
        del reason
        if left_sites:
            return
        left_sites.append(user_call_site())
        group.leave(call_site=left_sites[0])

    return ProcessGroupHorovod(group, options.store, label, options.timeout, leave)


def _label_of(options: Any) -> str:
    return f"group_{options.group_id}"
