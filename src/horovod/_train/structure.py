"""Compare which leaf is where in a group: equal shapes alone must not be added."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIGEST_BITS = 40  # the engine refuses shapes of more than 2 ** 46 bytes
_MOST_CHARACTERS = 4000
_NUMBER = re.compile(r"_\d+(?=_|$)")


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of a group of arrays, which ranks compare in addition to shapes and dtypes.

    Attributes:
        digest: of the paths, in their order; from 1 to 2 ** 40.
        text: the paths, for messages; cut if there are very many.
    """

    digest: int
    text: str

    @classmethod
    def of(cls, paths: Sequence[str], what: str) -> Structure:
        """Describes a group by the paths or names of its members.

        Args:
            paths: in the order of the members.
            what: messages call them so.
        """
        return _described(tuple(paths), what)

    @property
    def mark(self) -> tuple[int, int]:
        """The shape of an empty array that travels with the group.

        Ranks whose groups differ give different shapes, which the engine refuses, naming both.
        """
        return (0, self.digest)


def without_numbers(name: str) -> str:
    """A name without the numbers that frameworks put into it, which differ between ranks.

    Example:
        >>> without_numbers("dense_47_kernel_1")
        'dense_kernel'
    """
    return _NUMBER.sub("", name)


@functools.lru_cache(maxsize=256)
def _described(paths: tuple[str, ...], what: str) -> Structure:
    hashed = hashlib.sha256(repr(paths).encode("utf-8", "surrogatepass")).digest()
    listed = ", ".join(path if path.isprintable() else repr(path) for path in paths)
    if len(listed) > _MOST_CHARACTERS:
        listed = f"{listed[:_MOST_CHARACTERS]} …"
    digest = 1 + int.from_bytes(hashed[:8], "little") % (1 << _DIGEST_BITS)
    return Structure(digest, f"{len(paths)} {what} {listed}")
