"""The report of a rank that dies of an exception: the exception itself, in the store.

The launcher sees how each process ended, but not why. Without this report, which failure came first
would have to be read from what ranks print, and a program may send that elsewhere, or print much
else.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import Config
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_MOST_CHARACTERS = 1000
_MOST_CAUSES = 5
# The launcher waits for no report, and the end of a job must not wait for the launcher.
_TIMEOUT_S = 1.0
# In larger jobs, only ranks that fail by themselves report: when one is lost, all others fail at
# once, and their connections would keep the launcher busy for seconds.
_MOST_FOLLOWERS = 512
_FOLLOWERS = ("PeerLostError", "ShutDownError", "HorovodInternalError")


@dataclass(frozen=True)
class EndReport:
    """An exception that ended a rank.

    Attributes:
        kind: the name of its class.
        text: what it says.
        where: ``file:line`` that raised it; empty if that is unknown.
        causes: the exceptions while or because of which it was raised, the nearest first, as
            "kind: text".
    """

    kind: str
    text: str
    where: str = ""
    causes: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The exception and its causes, the first of them first, each as "kind: text"."""
        return (*reversed(self.causes), f"{self.kind}: {self.text}")

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(asdict(self)).encode("ascii")

    @staticmethod
    def from_json(text: bytes) -> EndReport | None:
        """Reads what :meth:`to_json` wrote; None if it is something else."""
        try:
            fields = json.loads(text)
            kind, said, where = (
                str(fields[name])[:_MOST_CHARACTERS] for name in ("kind", "text", "where")
            )
            causes = (
                str(field)[: 2 * _MOST_CHARACTERS] for field in fields["causes"][:_MOST_CAUSES]
            )
            return EndReport(kind, said, where, tuple(causes))
        except (ValueError, LookupError, TypeError, RecursionError):
            return None


def report_of(error: BaseException) -> EndReport:
    """The report about an exception, short enough for any store. Pure."""
    causes: list[str] = []
    cause = _cause_of(error)
    while cause is not None and len(causes) < _MOST_CAUSES:
        causes.append(f"{type(cause).__name__}: {_text_of(cause)}")
        cause = _cause_of(cause)
    where = place_of(error.__traceback__)[:_MOST_CHARACTERS]
    return EndReport(type(error).__name__, _text_of(error), where, tuple(causes))


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that Python prints above this one."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_MOST_CHARACTERS]
    except Exception:  # a class of the user's, at the end of its process
        return ""


def place_of(traceback: TracebackType | None) -> str:
    """Return the line that raised, "file:line"; empty if there is none."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


def tell_end(error: BaseException) -> None:
    """Leaves a report in the store of the launcher, if this process has one; never raises.

    Args:
        error: of which the process is about to die.
    """
    if not isinstance(error, Exception):
        return  # Ctrl-C, of which the launcher knows
    try:
        # The environment, as the launcher gave it: it watches this process under that rank.
        config = Config.from_env()
    except StartError:
        return  # that may be what the error says
    follows = type(error).__name__ in _FOLLOWERS
    if not config.rendezvous_addr or (follows and config.size > _MOST_FOLLOWERS):
        return
    try:
        secret = secret_of(config)
        where = (config.rendezvous_addr, config.rendezvous_port)
        with StoreClient(*where, secret, _TIMEOUT_S) as store:
            store.set(end_key(_worker_of(config)), report_of(error).to_json())
    except (StartError, OSError):
        return


def _worker_of(config: Config) -> int:
    """The number under which the launcher knows this process."""
    number = config.worker_id.rpartition("-")[2] if config.elastic else ""
    return int(number) if number.isdecimal() else config.rank


def end_key(worker: int) -> str:
    """Return the key of the report of a worker."""
    return f"ended/{worker}"


def end_report(worker: int, look_up: Callable[[str], bytes | None]) -> EndReport | None:
    """Return the report of a worker's end; None if it reported nothing.

    Args:
        worker: which one; the rank that the launcher gave it.
        look_up: of the job's store.
    """
    text = look_up(end_key(worker))
    return None if text is None else EndReport.from_json(text)
