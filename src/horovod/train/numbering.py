"""Telling users of the same names apart, alike on all ranks and without asking them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.group import Group


class NameNumbers:
    """Numbers the users of names in the order in which the script makes them, from 1.

    All ranks run the same script, so they agree on the numbers. Counting begins anew with each job:
    after an elastic restart the survivors make the same things as the newcomers, and what they have
    kept keeps its number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: weakref.WeakKeyDictionary[Group, dict[str, int]] = (
            weakref.WeakKeyDictionary()
        )

    def number_for(self, names: Iterable[str], group: Group) -> int:
        """Returns the lowest number above those of all earlier users of any of these names.

        Args:
            names: what the new user will call its operations.
            group: where they will run first.
        """
        own = list(names)
        with self._lock:
            highest = self._highest.setdefault(group, {})
            number = 1 + max((highest.get(name, 0) for name in own), default=0)
            highest.update(dict.fromkeys(own, number))
            return number
