"""A sequence that only grows, for states of large jobs: adding to it copies nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class History(Sequence[T]):
    """What has happened so far; :meth:`then` returns a longer one and leaves this one as it is.

    Histories that continue one another share their items.

    Example:
        >>> History([1, 2]).then(3)
        History([1, 2, 3])
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def then(self, item: T) -> History[T]:
        """This history with one more item at its end."""
        longer: History[T] = History.__new__(History)
        # If another history has grown from this one, it owns what follows.
        is_last = len(self._items) == self._length
        longer._items = self._items if is_last else self._items[: self._length]
        longer._items.append(item)
        longer._length = self._length + 1
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(self._length))]
        return self._items[range(self._length)[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self[:] == other[:]

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"History({self[:]!r})"
