"""A rank that ended well before ``init``, for which the others would wait in vain.

The launcher sees such an end at once. It cannot know whether anybody waits, or will: a command that
never calls ``init`` is no mistake. So it leaves a note where only ranks inside ``init`` look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._rendezvous.incarnation import Incarnation, latest_key
from horovod.runner.supervision.failure import RankExit, headline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def note(ended: RankExit, num_inits: int) -> str:
    """Return the message on a rank's end for ranks that wait for it in ``init``. Pure.

    Args:
        ended: how it ended.
        num_inits: how often it had called ``init``.
    """
    return f"{headline(ended)} before {'another ' if num_inits else ''}hvd.init()"


def leave_note(
    ended: RankExit,
    look_up: Callable[[str], bytes | None],
    add: Callable[[str, bytes], object],
) -> None:
    """Tells those that wait for a rank in ``init``, now or later, that it has ended.

    Args:
        ended: the end of any rank; of a failure nothing is told, as it ends the job anyway.
        look_up, add: of the job's store.
    """
    if ended.returncode == 0:
        latest = Incarnation.parse(look_up(latest_key(ended.rank)) or b"0.0")
        add(latest.next.failed_key, note(ended, latest.count).encode())


def blame(exits: Sequence[RankExit]) -> str:
    """One line about the rank for which others waited in ``init``; empty if none did. Pure.

    Args:
        exits: of the ranks that ended by themselves.
    """
    for ended in exits:
        for text in (note(ended, 0), note(ended, 1)) if ended.returncode == 0 else ():
            waited = sorted(rank_exit.rank for rank_exit in exits if _quotes(rank_exit, text))
            if waited:
                ranks = f"rank{'s' if len(waited) > 1 else ''} {', '.join(map(str, waited))}"
                return f"{text}, and {ranks} waited for it in init"
    return ""


def _quotes(each: RankExit, text: str) -> bool:
    return each.returncode != 0 and any(text in line for line in (*each.words, *each.stderr_tail))
