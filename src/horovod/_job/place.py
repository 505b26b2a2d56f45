"""The place of one worker in one generation of a job."""

from __future__ import annotations

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError


@dataclass(frozen=True)
class Place:
    """The rank numbers of a worker in one generation; the next may give it others.

    Attributes:
        rank, size: this worker among all of the job.
        local_rank, local_size: among those of its host.
        cross_rank, cross_size: its host among those that have a worker of this local rank.
        generation: of the job's membership, from 0. It comes from the job, not from how often a
            process called ``init``: survivors and newcomers agree on it.

    Raises:
        UsageError: a rank is not below its size, or the generation is negative.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    generation: int = 0

    def __post_init__(self) -> None:
        for scope, rank, size in (
            ("", self.rank, self.size),
            ("local_", self.local_rank, self.local_size),
            ("cross_", self.cross_rank, self.cross_size),
        ):
            if not 0 <= rank < size:
                raise UsageError(
                    f"a place with {scope}rank={rank} of {scope}size={size} makes no sense: the "
                    "rank is at least 0 and below the size"
                )
            if size > self.size:
                raise UsageError(
                    f"a place with {scope}size={size} in a job of size={self.size} makes no sense"
                )
        if self.generation < 0:
            raise UsageError(f"a place in generation {self.generation} makes no sense")

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} in generation {self.generation}"
