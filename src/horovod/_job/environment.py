"""The assignment of a worker, and the variables that carry it to a process."""

from __future__ import annotations

import re
import sys
from dataclasses import field
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._job.place import Place
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKER_ID = "HOROVOD_WORKER_ID"
SECRET_FILE = "HOROVOD_SECRET_FILE"
_SECRET_KEY = "HOROVOD_SECRET_KEY"
_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_GENERATION = "HOROVOD_GENERATION"
_HOSTNAME = "HOROVOD_HOSTNAME"
_START_TIMEOUT = "HOROVOD_START_TIMEOUT"
_ELASTIC, _SLOT = "HOROVOD_ELASTIC", "HOROVOD_WORKER_SLOT"
_MIN_SIZE, _MAX_SIZE = "HOROVOD_MIN_SIZE", "HOROVOD_MAX_SIZE"
_ELASTIC_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"
_WORKER_TIMEOUT = "HOROVOD_WORKER_TIMEOUT"
# The names with GLOO in them are what scripts for earlier versions look at.
_INTERFACE = "HOROVOD_GLOO_IFACE"


@dataclass(frozen=True)
class StoreAddress:
    """The address of the job's key-value store, and the secret that opens it.

    Attributes:
        address, port: of the store.
        secret: 32 bytes; empty where it is told in another way.
    """

    address: str
    port: int
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Assignment:
    """The facts that a worker needs to take part in a job.

    ``hvd.init(job=…)`` takes it as it is; :meth:`variables` and :meth:`from_variables` carry it
    into a new process.

    Attributes:
        store: of the job; None for a job of one rank.
        place: of this worker; None if it has to ask the store (:func:`horovod._job.worker.join`).
        identity: names this process and no other of the job, ever; empty if nobody needs it.
        hostname: the name of its host; empty for what the host calls itself.
        secret_file: a private file that holds the secret, if ``store`` does not.
        start_timeout_s: seconds to wait for all ranks to connect; None for the default.
        network_interface: at which it listens for other hosts; empty for the one that leads to the
            store.
        slot: which of the places for a worker this one uses on its host, from 0; it never changes.
        elastic: whether the generations of the job may change while the worker trains.
        min_size, max_size: the fewest and the most members of a generation; None for no limit.
        elastic_timeout_s: seconds that an elastic worker waits for its next place.
        worker_timeout_s: seconds of silence after which an elastic worker is given up.
    """

    store: StoreAddress | None = None
    place: Place | None = None
    identity: str = ""
    hostname: str = ""
    secret_file: str = ""
    start_timeout_s: float | None = None
    network_interface: str = ""
    slot: int = 0
    elastic: bool = False
    min_size: int = 1
    max_size: int | None = None
    elastic_timeout_s: float = 600.0
    worker_timeout_s: float = 60.0

    def variables(self) -> dict[str, str]:
        """All of it as variables of an environment; what is not known is left out.

        A secret that is in here is in the result, too: do not put it on a command line.
        """
        told: dict[str, object] = {
            WORKER_ID: self.identity,
            _HOSTNAME: self.hostname,
            SECRET_FILE: self.secret_file,
            _INTERFACE: self.network_interface,
        }
        if self.elastic:
            told |= {_ELASTIC: 1, _SLOT: self.slot, _MIN_SIZE: self.min_size}
            told |= {_MAX_SIZE: "" if self.max_size is None else self.max_size}
            told[_ELASTIC_TIMEOUT] = repr(self.elastic_timeout_s)
            told[_WORKER_TIMEOUT] = repr(self.worker_timeout_s)
        if self.start_timeout_s is not None:
            told[_START_TIMEOUT] = repr(self.start_timeout_s)
        if self.store is not None:
            told |= {_ADDRESS: self.store.address, _PORT: self.store.port}
            told[_SECRET_KEY] = self.store.secret.hex()
        if self.place is not None:
            told |= {_name(each): getattr(self.place, each) for each in _RANKS}
            # Scripts and launchers that know no generations see what they have always seen.
            told[_GENERATION] = self.place.generation or ""
        return {name: str(value) for name, value in told.items() if value != ""}

    @staticmethod
    def from_variables(variables: Mapping[str, str]) -> Assignment:
        """Reads what :meth:`variables` wrote.

        Raises:
            StartError: a value makes no sense.
        """
        reader = SettingsReader(variables)
        timeout_s = reader.value(_START_TIMEOUT) if reader.text(_START_TIMEOUT) else None
        return Assignment(
            store_in(variables),
            _place_in(reader),
            reader.text(WORKER_ID),
            reader.text(_HOSTNAME),
            reader.text(SECRET_FILE),
            timeout_s,
            reader.text(_INTERFACE),
            reader.value(_SLOT),
            reader.value(_ELASTIC),
            reader.value(_MIN_SIZE),
            reader.value(_MAX_SIZE) if reader.text(_MAX_SIZE) else None,
            reader.value(_ELASTIC_TIMEOUT),
            reader.value(_WORKER_TIMEOUT),
        )


def store_in(variables: Mapping[str, str]) -> StoreAddress | None:
    """Return the address of the store that variables name; None if they name none.

    Raises:
        StartError: a value makes no sense.
    """
    reader = SettingsReader(variables)
    if not reader.text(_ADDRESS):
        return None
    return StoreAddress(reader.text(_ADDRESS), reader.value(_PORT), _secret_in(reader))


_RANKS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def _name(field_name: str) -> str:
    return f"HOROVOD_{field_name.upper()}"


def _place_in(reader: SettingsReader) -> Place | None:
    if not reader.text(_name("rank")):
        return None
    numbers: list[int] = []
    for index in range(0, len(_RANKS), 2):
        numbers += reader.rank_and_size(_name(_RANKS[index]), _name(_RANKS[index + 1]))
    ranks = dict(zip(_RANKS, numbers, strict=True))
    return Place(**ranks, generation=reader.value(_GENERATION))


def _secret_in(reader: SettingsReader) -> bytes:
    try:
        return bytes.fromhex(reader.text(_SECRET_KEY))
    except ValueError:
        raise StartError(f"{_SECRET_KEY} is not hexadecimal") from None


# What opens this job, or another one, is handed over in other ways; so is who somebody is in it.
_OF_A_JOB = re.compile(
    r"_?HOROVOD_SECRET_(?:KEY|FILE)|HOROVOD_WORKER_(?:ID|SLOT)|HOROVOD_GENERATION|HOROVOD_ELASTIC"
)


def without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that open a job, this one or another, and tell a worker of it."""
    return {name: value for name, value in environ.items() if not _OF_A_JOB.fullmatch(name)}


def python_command(module: str) -> list[str]:
    """The command that runs a module of Horovod in this Python.

    Args:
        module: its full name; the working directory is kept out of ``sys.path`` where Python can,
            so that a file of the user does not stand in for a module of the library.
    """
    isolation = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *isolation, "-m", module]
