"""What becomes of the global batch when ranks come or go, and how a constant one is divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.gradients import split_list
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW_RANKS = 4


class GlobalBatch:
    """Compares the ranks before and after a change, to say what an optimizer step averages now.

    Example:
        >>> global_batch = GlobalBatch()
        >>> global_batch.change(ranks=4, batch_size=32)
        >>> global_batch.change(ranks=3, batch_size=32)
        '4 to 3 ranks: the global batch is 96 samples instead of 128'
        >>> global_batch.change(ranks=2, batch_size=32, constant=128)
        '3 to 2 ranks: the global batch stays 128 samples: 2 ranks take 64 each, in 2 passes'
    """

    def __init__(self) -> None:
        self._ranks: int | None = None

    def expect(self, ranks: int) -> None:
        """Note how many ranks the job had before this rank came; 0 if nobody knows.

        Does nothing once this rank has seen a number itself.
        """
        self._ranks = self._ranks or ranks or None

    def change(self, ranks: int, batch_size: int, constant: int | None = None) -> str | None:
        """Say what a change does; None if there were as many ranks before.

        Args:
            ranks: how many the job has now.
            batch_size: samples per rank in a step, before and after; of a constant global batch,
                the most samples in a pass.
            constant: how many samples a step has whatever the ranks; None if that depends on them.
        """
        before, self._ranks = self._ranks, ranks
        if before is None or before == ranks:
            return None
        change = f"{before} to {ranks} ranks"
        if constant is not None:
            return (
                f"{change}: the global batch stays {constant} samples: "
                f"{describe_shares(constant, ranks, batch_size)}"
            )
        if batch_size == 1:  # also of data whose samples are batches
            return f"{change}: a step has {ranks} samples or batches, not {before}"
        return (
            f"{change}: the global batch is {ranks * batch_size} samples "
            f"instead of {before * batch_size}"
        )


def describe_shares(total: int, ranks: int, batch_size: int) -> str:
    """Say how many samples of a step each rank takes.

    Example:
        >>> describe_shares(128, 3, 64)
        '3 ranks take 43, 43 and 42'
        >>> describe_shares(128, 7, 32)
        '2 of 7 ranks take 19, the others 18'
    """
    least, more = divmod(total, ranks)
    passes = passes_of(total, ranks, batch_size)
    suffix = f", in {passes} passes" if passes > 1 else ""
    if not more:
        takes = f"takes {least}" if ranks == 1 else f"take {least} each"
        return f"{ranks} rank{'s' if ranks > 1 else ''} {takes}{suffix}"
    if ranks <= _FEW_RANKS:
        counts = [str(least + (rank < more)) for rank in range(ranks)]
        return f"{ranks} ranks take {', '.join(counts[:-1])} and {counts[-1]}{suffix}"
    return f"{more} of {ranks} ranks take {least + 1}, the others {least or 'none'}{suffix}"


def passes_of(total: int, size: int, batch_size: int) -> int:
    """Return in how many passes each rank takes its share of a step, the same on all ranks.

    So ranks stay together where a forward pass communicates, as that of SyncBatchNorm.

    Args:
        total: samples of all ranks together.
        size: of the job.
        batch_size: how many samples fit into a pass.

    Example:
        >>> passes_of(128, 3, 32)
        2
    """
    largest = -(-total // size)
    return -(-largest // batch_size)


def split_for_passes(items: Sequence[Any], passes: int) -> list[tuple[Sequence[Any], int]]:
    """Divide the samples of a rank among its passes, as evenly as possible.

    Args:
        items: at least one.
        passes: of the step.

    Returns:
        For each pass its samples, and how many of them count: none if there were not enough, and
        the first sample stands in.

    Example:
        >>> split_for_passes([7, 8, 9], 2)
        [([7, 8], 2), ([9], 1)]
        >>> split_for_passes([7], 2)
        [([7], 1), ([7], 0)]
    """
    return [(part or items[:1], len(part)) for part in split_list(items, passes)]


def check_global_batch(global_batch: int | None) -> None:
    """Refuse what is no number of samples.

    Raises:
        UsageError: it is below 1, or no integer.
    """
    if global_batch is None:
        return
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise UsageError(
            f"global_batch={global_batch!r}: say how many samples all ranks together have in a "
            "step of the optimizer, an integer of at least 1; None for batch_size per rank"
        )
