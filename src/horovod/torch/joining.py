"""Ranks that run out of data before the others."""

from __future__ import annotations

from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import current_index
from horovod.train.call_site import call_site
from horovod.train.process_set import ProcessSet, global_process_set, group_of


@outside_of_graphs
def join(
    device: int = -1,
    process_set: ProcessSet = global_process_set,
    *,
    divide_by_initial_world_size: bool = True,
) -> int:
    """Says that this rank has no more data; waits until all ranks of the set have said so.

    Until then it takes part in every allreduce with what does not change the result, so that ranks
    with different numbers of batches can train to the end. Synchronize all asynchronous operations
    before.

    Args:
        device: index of the GPU with which this rank goes on to take part, where the others reduce
            tensors on GPUs; -1 for the current one. A GPU that is not there is passed over.
        process_set: the ranks that take part.
        divide_by_initial_world_size: whether averages go on being divided by the size of the set,
            or by the number of ranks that still have data.

    Returns:
        The global rank that joined last, the same on all ranks: it has seen the most data.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod was shut down.

    Example:
        >>> for batch in my_batches:   # of different number on each rank
        ...     train(batch)
        >>> hvd.join()
    """
    handle = group_of(process_set).join(
        device=current_index() if device < 0 else device,
        divide_by_initial_world_size=divide_by_initial_world_size,
        call_site=call_site(),
    )
    handle.wait()
    return handle.last_joined()
