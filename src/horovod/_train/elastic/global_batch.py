"""What becomes of the global batch when ranks come or go."""

from __future__ import annotations


class GlobalBatch:
    """Compares the ranks before and after a change, to say what an optimizer step averages now.

    Example:
        >>> global_batch = GlobalBatch()
        >>> global_batch.change(ranks=4, batch_size=32)
        >>> global_batch.change(ranks=3, batch_size=32)
        '4 to 3 ranks: the global batch is 96 samples instead of 128'
    """

    def __init__(self) -> None:
        self._ranks: int | None = None

    def change(self, ranks: int, batch_size: int) -> str | None:
        """Say what a change does; None if there were as many ranks before.

        Args:
            ranks: how many the job has now.
            batch_size: samples per rank in a step, before and after.
        """
        before, self._ranks = self._ranks, ranks
        if before is None or before == ranks:
            return None
        if batch_size == 1:  # also of data whose samples are batches
            return f"{before} to {ranks} ranks: a step has {ranks} samples or batches, not {before}"
        return (
            f"{before} to {ranks} ranks: the global batch is {ranks * batch_size} samples "
            f"instead of {before * batch_size}"
        )
