"""Settings of one rank: a frozen :class:`Config`, and the only reader of ``os.environ``."""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from horovod._base import log
from horovod._base.fast_dataclass import dataclass
from horovod._settings import FIELDS
from horovod._settings.advice import advice_on
from horovod._settings.destinations import parse_destinations
from horovod._settings.exports import exports_in
from horovod._settings.foreign_launchers import (
    ForeignLauncher,
    check_launchers,
    find_foreign_launcher,
    warn_of_unserved_launcher,
)
from horovod._settings.honored import HonoredSettings
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_logger = logging.getLogger(__name__)

NATIVE_LOG_LEVELS = {"trace": 0, "debug": 0, "info": 0, "warning": 1, "error": 2, "fatal": 3}
"""By log level, the least of the engine's levels (0 info, 1 warning, 2 error) to be written; 3 is
above all of them."""

_SECRET_DIGITS = 64

_RANK_NAMES = ("HOROVOD_RANK", "HOROVOD_SIZE")
_LOCAL_RANK_NAMES = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_CROSS_RANK_NAMES = ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
# Algorithms of allreduce whose result does not depend on what travels together.
_IN_RANK_ORDER = ("auto", "exchange", "direct")


def inherited_environment() -> dict[str, str]:
    """A copy of the variables of this process, for the processes that a launcher starts."""
    return dict(os.environ)


@contextmanager
def temporary_environment(**variables: str | None) -> Iterator[None]:
    """Variables of this process that are set inside the block, and are as before after it.

    Args:
        variables: their values; None leaves one as it is.
    """
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def set_environment(variables: Mapping[str, str]) -> None:
    """Sets variables of this process, where scripts of users look for them."""
    os.environ.update(variables)


def tell_place(config: Config) -> None:
    """Writes the place of this process into its environment, where older scripts look for it."""
    for field in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[FIELDS[field].name] = str(getattr(config, field))


@dataclass(frozen=True)
class Config(HonoredSettings):
    """Everything that a rank must know to join its job: its settings, and what follows from them.

    Attributes:
        is_placed: whether the launcher set rank, size and the local and cross numbers.
        foreign_launcher: what started this process, if it was not our launcher.
        unserved_launcher: a warning that names a launcher that Horovod does not join, so that this
            process trains alone; empty if there is none, or another process warns.
        fusion_threshold_is_set: whether the user chose it, so that autotuning leaves it alone.
        is_lent: whether the ranks met over the store of another program, so that the environment
            does not describe their job.
        exports: who asks for what the job reports: "kubeflow" and "otlp".
        holds_store: whether this process has opened the job's store, so that no launcher of ours
            serves those who watch.
    """

    is_placed: bool = False
    foreign_launcher: ForeignLauncher | None = None
    unserved_launcher: str = ""
    fusion_threshold_is_set: bool = False
    is_lent: bool = False
    exports: tuple[str, ...] = ()
    holds_store: bool = False

    @property
    def page_port(self) -> int | None:
        """The port of the live page; 0 for any, None for no page."""
        if self.dashboard == 0:
            return None
        return 0 if self.dashboard == 1 else self.dashboard

    @property
    def asks_to_watch(self) -> bool:
        """Whether the user wants to see the job from its beginning."""
        return self.dashboard > 0 or self.metrics_port is not None or self.watch

    @property
    def may_be_shown(self) -> bool:
        """Whether the user, or variables of others, ask for what the job reports."""
        return self.asks_to_watch or bool(self.exports)

    def __post_init__(self) -> None:
        if self.stall_check_disable:
            object.__setattr__(self, "stall_check_time_s", 0.0)

    @staticmethod
    def from_env(
        environ: Mapping[str, str] | None = None, told: Mapping[str, str] | None = None
    ) -> Config:
        """Reads the settings that the launcher left in the environment.

        Rank 0 warns about variables that are unknown, deprecated or ignored.

        Args:
            environ: the variables; those of this process if None.
            told: variables that an executor told without an environment; they are stronger.

        Raises:
            StartError: a variable has a value that makes no sense, or asks for what is not there;
                the message names it.
        """
        variables = os.environ if environ is None else environ
        reader = SettingsReader({**variables, **told} if told else variables)
        reader.check_words()
        values = {field: reader.value(setting.name) for field, setting in FIELDS.items()}
        values.update(_places(reader))
        found = find_foreign_launcher(reader.variables)
        contradiction = check_launchers(reader.variables, found)
        placed = bool(reader.text(_RANK_NAMES[0])) or values["elastic"]
        if values["worker_id"] and not placed:
            raise StartError(
                f"worker {reader.text('HOROVOD_WORKER_ID')} was told no place (HOROVOD_RANK is "
                "missing): let it join its job and await one, see horovod._job.worker.join_as"
            )
        if not placed and values["foreign_launcher"] is None:
            values["unserved_launcher"] = warn_of_unserved_launcher(reader.variables)
        values["secret_key"] = _secret_key(reader)
        values["bootstrap_address"] = _bootstrap_address(reader)
        values["hostname"] = reader.text("HOROVOD_HOSTNAME") or socket.gethostname()
        values["fusion_threshold_is_set"] = bool(reader.text("HOROVOD_FUSION_THRESHOLD"))
        values["start_timeout_s"] = _start_timeout_s(reader)
        values["exports"] = exports_in(reader.variables)
        advice = [*advice_on(reader), *_drop_what_does_not_fit(values)]
        advice += [contradiction] if contradiction else []
        config = Config(**values)
        config._check()
        if environ is None:
            log.follow(config.log_level, hide_time=config.log_hide_time)
        for line in advice if config.rank == 0 else ():
            _logger.warning("%s", line)
        return config

    def at_hosts(self, hosts: Sequence[int]) -> Config:
        """The settings with the place of this rank among the hosts, unless the launcher told it.

        Args:
            hosts: the host of each rank, by number.
        """
        if self.is_placed:
            return self
        host = hosts[self.rank]
        mates = [rank for rank, other in enumerate(hosts) if other == host]
        local_rank = mates.index(self.rank)
        owners = [owner for owner in dict.fromkeys(hosts) if hosts.count(owner) > local_rank]
        return replace(
            self,
            local_rank=local_rank,
            local_size=len(mates),
            cross_rank=owners.index(host),
            cross_size=len(owners),
            is_placed=True,
        )

    def _check(self) -> None:
        if self.size > 1 and not self.rendezvous_addr and not self._can_meet():
            raise StartError(
                f"rank {self.rank} of {self.size} was not told where the job's store listens "
                "(HOROVOD_GLOO_RENDEZVOUS_ADDR is missing): start the script with horovodrun"
            )
        if self.bootstrap_address and not (self.secret_key or self.secret_file):
            raise StartError(
                "HOROVOD_RENDEZVOUS needs a secret that all ranks share: set HOROVOD_SECRET_KEY to "
                "what `openssl rand -hex 32` prints, or HOROVOD_SECRET_FILE to a private file of "
                "32 bytes, the same on all of them"
            )
        if not (self.rendezvous_addr == "" or 0 < self.rendezvous_port < 65536):
            raise StartError(f"HOROVOD_GLOO_RENDEZVOUS_PORT={self.rendezvous_port} is not a port")
        if self.deterministic and self.allreduce_algorithm not in _IN_RANK_ORDER:
            raise StartError(
                f"HOROVOD_ALLREDUCE_ALGORITHM={self.allreduce_algorithm} does not reduce in the "
                "order of the ranks, as HOROVOD_DETERMINISTIC=1 asks for: unset one of them, or "
                "use exchange or direct"
            )
        if self.deterministic and self.cpu_operations == "mpi":
            raise StartError(
                "HOROVOD_CPU_OPERATIONS=mpi leaves the order of additions to the MPI library, but "
                "HOROVOD_DETERMINISTIC=1 asks for equal reruns: unset one of them"
            )
        parse_destinations(self.log)
        if self.start_timeout_s <= 0:
            raise StartError(f"HOROVOD_START_TIMEOUT={self.start_timeout_s:g} is not above 0")

    def _can_meet(self) -> bool:
        return self.foreign_launcher is not None or bool(self.bootstrap_address)


def _places(reader: SettingsReader) -> dict[str, Any]:
    """Return this process's place in the job, from our launcher or from another one."""
    values: dict[str, Any] = {"is_placed": bool(reader.text(_CROSS_RANK_NAMES[0]))}
    rank_names, local_names = _RANK_NAMES, _LOCAL_RANK_NAMES
    values["foreign_launcher"] = None
    if (found := find_foreign_launcher(reader.variables)) is not None:
        values["foreign_launcher"], rank_names, local_names = found
        values["is_placed"] = False
    values["rank"], values["size"] = reader.rank_and_size(*rank_names)
    values["local_rank"], values["local_size"] = reader.rank_and_size(*local_names)
    values["cross_rank"], values["cross_size"] = reader.rank_and_size(*_CROSS_RANK_NAMES)
    return values


def _secret_key(reader: SettingsReader) -> str:
    text = reader.text("HOROVOD_SECRET_KEY")
    if text and not re.fullmatch(f"[0-9A-Fa-f]{{{_SECRET_DIGITS}}}", text):
        raise StartError(
            f"HOROVOD_SECRET_KEY has {len(text)} characters, but must be {_SECRET_DIGITS} "
            "hexadecimal digits: take what `openssl rand -hex 32` prints"
        )
    return text


def _bootstrap_address(reader: SettingsReader) -> tuple[str, int] | None:
    text = reader.text("HOROVOD_RENDEZVOUS")
    if not text:
        return None
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\s]+)):(\d{1,5})", text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise StartError(f"HOROVOD_RENDEZVOUS={text!r} is not host:port or [IPv6 address]:port")
    return match[1] or match[2], int(match[3])


def _start_timeout_s(reader: SettingsReader) -> float:
    older: float | None = reader.value("HOROVOD_GLOO_TIMEOUT_SECONDS")
    if older is not None and not reader.text("HOROVOD_START_TIMEOUT"):
        if older <= 0:
            raise StartError(f"HOROVOD_GLOO_TIMEOUT_SECONDS={older:g} is not above 0")
        return older
    timeout_s: float = reader.value("HOROVOD_START_TIMEOUT")
    return timeout_s


def _drop_what_does_not_fit(values: dict[str, Any]) -> list[str]:
    """Resets values that contradict others, and returns what to tell the user about it."""
    advice = []
    check_s, shutdown_s = values["stall_check_time_s"], values["stall_shutdown_time_s"]
    reports = check_s is not None and not values["stall_check_disable"]
    if reports and 0 < shutdown_s < check_s:
        values["stall_shutdown_time_s"] = 0.0
        advice.append(
            f"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={shutdown_s:g} is ignored, as it is below the "
            f"{check_s:g} s of HOROVOD_STALL_CHECK_TIME_SECONDS"
        )
    if values["cpu_operations"] == "mpi" and values["allreduce_algorithm"] != "auto":
        advice.append(
            f"HOROVOD_ALLREDUCE_ALGORITHM={values['allreduce_algorithm']} is ignored: with "
            "HOROVOD_CPU_OPERATIONS=mpi the MPI library chooses"
        )
    cores, local_size = values["thread_affinity"], values["local_size"]
    if 0 < len(cores) < local_size:
        values["thread_affinity"] = ()
        advice.append(
            f"HOROVOD_THREAD_AFFINITY names {len(cores)} cores for the {local_size} ranks of this "
            "host and is ignored; name one for each local rank"
        )
    return advice
