"""From the arguments of ``init_process_group`` and ``new_group`` to a group of the engine."""

from __future__ import annotations

from typing import Any

from horovod._rank import context
from horovod.errors import UsageError
from horovod.torch.distributed.call_sites import user_call_site
from horovod.torch.distributed.process_group import ProcessGroupHorovod


def create_group(options: Any, backend_options: Any = None) -> ProcessGroupHorovod:
    """Make the process group that PyTorch asks for.

    The group of all ranks joins the job: the one that ``hvd.init()`` has joined, if it has, else
    the one that a launcher or PyTorch's store describes. In the second case the job ends with the
    group.

    Args:
        options: the store, rank, size, timeout, name and global ranks of the group, as
            ``torch.distributed`` gives them to backends; no ranks are those of all.
        backend_options: ``pg_options`` of the caller; this backend has none.

    Raises:
        UsageError: there are options, the ranks do not rise, or the job has another size or rank.
        StartError: a rank did not appear in time.
    """
    if backend_options is not None:
        raise UsageError(
            f"pg_options={backend_options!r}: the backend horovod has no options; its settings are "
            "those of horovodrun and of the HOROVOD_ variables"
        )
    if options.global_ranks_in_group:
        return _create_part(options)
    is_owner = _join_job(options)
    group = context.global_group()

    def leave(reason: str) -> None:
        if is_owner:
            context.current().shutdown(reason)

    return ProcessGroupHorovod(group, options.store, "world", options.timeout, leave)


def _create_part(options: Any) -> ProcessGroupHorovod:
    """Make a group of some ranks, a process set of their own; only they come here."""
    ranks = list(options.global_ranks_in_group)
    if ranks != sorted(ranks):
        raise UsageError(f"new_group(ranks={ranks}): the ranks have to rise")
    label = f"group_{options.group_id}"
    world = context.global_group()
    group = world.add_by_members(ranks, name=f"torch.{label}", call_site=user_call_site())

    def leave(reason: str) -> None:
        """Keep the set: to remove it, all members would have to wait for each other."""

    return ProcessGroupHorovod(group, options.store, label, options.timeout, leave)


def _join_job(options: Any) -> bool:
    """Join the job of all ranks; return whether this call has joined it."""
    joins = not context.is_initialized()
    if joins:
        context.init()
    rank, size = context.rank(), context.size()
    if (rank, size) != (options.group_rank, options.group_size):
        raise UsageError(
            f"init_process_group() has rank {options.group_rank} of {options.group_size}, but this "
            f"process is rank {rank} of {size} of its Horovod job; give both the same"
        )
    return joins
