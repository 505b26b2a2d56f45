"""Which engines belong together: those of one generation of the job that started equally often."""

from __future__ import annotations

from horovod._base.fast_dataclass import dataclass

_MOST = 2**32 - 1


@dataclass(frozen=True)
class Incarnation:
    """One round of connecting; the same on all ranks that meet in it.

    Attributes:
        generation: of the job's membership, from 0. The job says it, so a process that is new and
            one that has been there for long agree on it.
        count: how often this process began to connect in this generation, this time included;
            0 for never. All members of a generation come to it with no count at all.
    """

    generation: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        for name, number in (("generation", self.generation), ("count", self.count)):
            if not 0 <= number <= _MOST:
                raise ValueError(f"the {name} of an incarnation, {number}, is not in 0 … {_MOST}")

    @property
    def is_start_of_job(self) -> bool:
        """Whether no engine of the job was there before; a launcher watches this start."""
        return self.generation == 0 and self.count == 1

    @property
    def prefix(self) -> str:
        """Prefix of all its keys in the store."""
        return f"peers/{self}/"

    @property
    def failed_key(self) -> str:
        """Key of the first cause of its failure."""
        return f"{self.prefix}failed"

    @property
    def next(self) -> Incarnation:
        """The following one in the same generation."""
        return Incarnation(self.generation, self.count + 1)

    @property
    def previous(self) -> Incarnation | None:
        """The one before in the same generation; None for the first."""
        return Incarnation(self.generation, self.count - 1) if self.count > 0 else None

    def __str__(self) -> str:
        return f"{self.generation}.{self.count}"

    @staticmethod
    def parse(text: bytes) -> Incarnation:
        """Reads what ``str`` wrote.

        Raises:
            ValueError: it is something else.
        """
        generation, _, count = text.decode("ascii").partition(".")
        return Incarnation(int(generation), int(count))


def latest_key(rank: int) -> str:
    """Return the key of the incarnation that a rank is in, or was in last."""
    return f"peers/latest/{rank}"
