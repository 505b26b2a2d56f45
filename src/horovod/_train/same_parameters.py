"""Whether all ranks have the same parameters, so that a model that differs on one is named.

Without it, the first operation that does not fit fails, or waits for ranks that never come.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from horovod._native import Buffer
from horovod._train import objects
from horovod._train.sync_check import MOST_REPORTED, name_ranks
from horovod.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group

_DIGEST_BYTES = 16


class Parameter(NamedTuple):
    """The properties of a parameter that must be the same on all ranks.

    Attributes:
        key: tells it from the other parameters: its name, or its place.
        layout: dtype and shape, for example ``float32 (3, 4)``.
        label: what messages call it; the ranks may differ in it.
    """

    key: str
    layout: str
    label: str


class PendingParameterCheck:
    """A digest of this rank's parameters on its way to the other ranks.

    Args:
        group: the ranks that compare; all of them must.
        parameters: of this rank, in any order.
        name: what the ranks agree on; None matches by the order of calls.
        call_site: ``file:line`` of the caller.
    """

    def __init__(
        self, group: Group, parameters: Iterable[Parameter], name: str | None, call_site: str
    ) -> None:
        self._group = group
        self._parameters = sorted(parameters)
        self._name = name
        self._call_site = call_site
        text = repr([(parameter.key, parameter.layout) for parameter in self._parameters])
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
        message = bytearray(digest)
        self._handle: Handle = group.allgather(
            (Buffer.from_array(message),), name=name, call_site=call_site, keep=message
        )

    def finish(self) -> bool:
        """Waits for the digests of all ranks; comes to the same end on all of them.

        Returns:
            Whether all ranks took part; those that have joined do not.

        Raises:
            MismatchError: they are not the same; the message names the first parameters and ranks.
            HorovodInternalError: the job failed.
        """
        self._handle.wait()
        (array,) = self._handle.results()
        digests = bytes(objects.bytes_of(array))
        if len(digests) < self._group.size * _DIGEST_BYTES:
            return False
        if digests == digests[:_DIGEST_BYTES] * self._group.size:
            return True
        name = "parameters" if self._name is None else self._name
        everyones = objects.allgather_object(
            self._group, [tuple(parameter) for parameter in self._parameters], name, self._call_site
        )
        raise MismatchError(
            describe_differences(
                [[Parameter(*each) for each in one] for one in everyones], self._group.ranks
            )
        )


def check_same_parameters(
    group: Group, parameters: Iterable[Parameter], name: str | None, call_site: str
) -> None:
    """Compares parameters between all ranks of a group.

    Args:
        group: the ranks that compare; all of them must call.
        parameters: of this rank, in any order.
        name: what the ranks agree on; None matches by the order of calls.
        call_site: ``file:line`` of the caller.

    Raises:
        MismatchError: on all ranks, if they are not the same.
        HorovodInternalError: the job failed.
    """
    if group.size > 1 and group.is_member:
        PendingParameterCheck(group, parameters, name, call_site).finish()


def describe_differences(everyones: Sequence[Sequence[Parameter]], ranks: Sequence[int]) -> str:
    """Which parameters are not the same on all ranks. Pure.

    Args:
        everyones: the parameters of each rank.
        ranks: their global ranks.

    Example:
        >>> one = [Parameter("bias", "float32 (2,)", "bias")]
        >>> describe_differences([one, []], [0, 1]).partition(". ")[0].partition(": ")[2]
        "'bias' is float32 (2,) on rank 0, missing on rank 1"
    """
    by_key = [{parameter.key: parameter for parameter in parameters} for parameters in everyones]
    texts = []
    for key in dict.fromkeys(key for known in by_key for key in known):
        holders: dict[str, list[int]] = {}
        for rank, known in zip(ranks, by_key, strict=True):
            holders.setdefault(known[key].layout if key in known else "missing", []).append(rank)
        if len(holders) > 1:
            label = next(known[key].label for known in by_key if key in known)
            places = ", ".join(f"{what} on {name_ranks(which)}" for what, which in holders.items())
            texts.append(f"{label!r} is {places}")
    rest = len(texts) - MOST_REPORTED
    more = f"; and {rest} more" if rest > 0 else ""
    return (
        f"the ranks do not have the same parameters: {'; '.join(texts[:MOST_REPORTED])}{more}. "
        "Build the same model on all ranks"
    )
