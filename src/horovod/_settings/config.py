"""Settings of one rank: a frozen :class:`Config`, and the only reader of ``os.environ``."""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from horovod._base import log
from horovod._settings import TABLE
from horovod._settings.advice import advice_on
from horovod._settings.foreign_launchers import (
    ForeignLauncher,
    find_foreign_launcher,
    warn_of_unserved_launcher,
)
from horovod._settings.honored import LOG_LEVELS, MIB
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_logger = logging.getLogger(__name__)

__all__ = [
    "LOG_LEVELS",
    "MIB",
    "NATIVE_LOG_LEVELS",
    "Config",
    "inherited_environment",
    "tell_place",
    "temporary_environment",
]

NATIVE_LOG_LEVELS = {"trace": 0, "debug": 0, "info": 0, "warning": 1, "error": 2, "fatal": 3}
"""By log level, the least of the engine's levels (0 info, 1 warning, 2 error) to be written; 3 is
above all of them."""

_SECRET_DIGITS = 64

_RANK_NAMES = ("HOROVOD_RANK", "HOROVOD_SIZE")
_LOCAL_RANK_NAMES = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_CROSS_RANK_NAMES = ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
_PLACE_FIELDS = {
    name: name.removeprefix("HOROVOD_").lower()
    for name in (*_RANK_NAMES, *_LOCAL_RANK_NAMES, *_CROSS_RANK_NAMES)
}
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
    for name, field_name in _PLACE_FIELDS.items():
        os.environ[name] = str(getattr(config, field_name))


@dataclass(frozen=True)
class Config:
    """Everything that a rank must know to join its job.

    Attributes:
        rank, size: this process among all processes of the job.
        local_rank, local_size: among the processes of this host.
        cross_rank, cross_size: among the processes that hold the same local rank.
        generation: of the job's membership, from 0; it changes with the places of the ranks.
        worker_id: the identity of this process in its job; empty if nobody gave it one.
        elastic: whether its place changes while it trains.
        hostname: the name of this host as the launcher knows it.
        is_placed: whether the launcher told all of these.
        foreign_launcher: who started this process, if it was not our launcher.
        unserved_launcher: a warning that names a launcher that Horovod does not join, so that this
            process trains alone; empty if there is none, or another process warns.
        rendezvous_addr, rendezvous_port: where the job's key-value store listens;
            an empty address means a job of one rank, or one that still has to meet.
        bootstrap_address: host and port at which the user wants rank 0 to open the store; None for
            nowhere.
        network_interface: at which this rank listens for those of other hosts; empty for the one
            that leads to the store.
        secret_file: a file of mode 0600 that holds the job's secret.
        secret_key: the secret itself as hexadecimal digits; empty if it is in the file.
        start_timeout_s: seconds to wait for all ranks to appear and connect.
        grace_s: seconds that ranks have to end after Ctrl-C or SIGTERM, for the launcher.
        thread_affinity: the core of the engine's thread by local rank; empty to bind none.
        fusion_threshold: bytes of tensors that may travel in one fused batch; 0 turns fusion off.
        fusion_threshold_is_set: whether the user chose it, so that autotuning leaves it alone.
        disable_group_fusion: whether a grouped operation shares no batch with others.
        cache_capacity: names for which the negotiation is remembered; 0 turns the cache off.
        num_streams: TCP connections that carry data between two ranks of different hosts.
        gradient_buckets: whether gradients live in buckets in shared memory, where that works.
        cpu_operations: what moves the data: native, gloo (the same), or mpi.
        mpi_library: the file of libmpi_abi; empty to look for it.
        mpi_threads_disable: whether MPI is initialized for Horovod's own thread only.
        gpu_operations: what moves tensors on GPUs: auto, nccl or staged.
        cuda_library: the file of the GPU driver; empty to look for it.
        nccl_library: the file of NCCL; empty to look for it.
        gpu_chunk_bytes: what tensors on GPUs are cut into on their way through host memory.
        gpu_pinned_bytes: most host memory that is pinned for that.
        allreduce_algorithm: how tensors are reduced between ranks; auto for the best one.
        autotune: whether the best settings are measured while training.
        autotune_log: file for what was tried; empty for none.
        autotune_warmup_samples: samples that are thrown away at first.
        autotune_steps_per_sample: steps in one sample.
        autotune_max_samples: samples after which tuning ends.
        deterministic: whether reruns are equal bit by bit.
        check_in_sync_steps: steps between two comparisons of parameters; 0 means never.
        stall_check_time_s: seconds after which missing ranks are reported; 0 turns it off, None
            follows the pace of the job.
        stall_shutdown_time_s: seconds after which a stalled job is ended; 0 means never.
        deadlock_timeout_s: seconds after which ranks that wait for each other end; 0 means never.
        timeline: file for the timeline; empty for none, DYNAMIC to wait for ``start_timeline``.
        timeline_mark_cycles: whether each batch is marked in the timeline.
        checkpoint_dir: path or URL for the files of commits; empty for none.
        checkpoint_every: commits from one that is written to the next.
        slow_worker: what the launcher does about a rank that makes the others wait: off, report,
            replace or remove.
        log_level: trace, debug, info, warning, error or fatal; see NATIVE_LOG_LEVELS.
        log_hide_time: whether lines of the log begin without the time.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    generation: int = 0
    worker_id: str = ""
    elastic: bool = False
    hostname: str = "localhost"
    is_placed: bool = False
    foreign_launcher: ForeignLauncher | None = None
    unserved_launcher: str = ""
    rendezvous_addr: str = ""
    rendezvous_port: int = 0
    bootstrap_address: tuple[str, int] | None = None
    network_interface: str = ""
    secret_file: str = ""
    secret_key: str = field(default="", repr=False)
    start_timeout_s: float = 30.0
    grace_s: float = 30.0
    thread_affinity: tuple[int, ...] = ()
    fusion_threshold: int = 64 * MIB
    fusion_threshold_is_set: bool = False
    disable_group_fusion: bool = False
    cache_capacity: int = 1024
    num_streams: int = 1
    gradient_buckets: bool = True
    cpu_operations: str = "native"
    mpi_library: str = ""
    mpi_threads_disable: bool = False
    gpu_operations: str = "auto"
    cuda_library: str = ""
    nccl_library: str = ""
    gpu_chunk_bytes: int = 4 * MIB
    gpu_pinned_bytes: int = 64 * MIB
    allreduce_algorithm: str = "auto"
    autotune: bool = False
    autotune_log: str = ""
    autotune_warmup_samples: int = 3
    autotune_steps_per_sample: int = 10
    autotune_max_samples: int = 20
    deterministic: bool = False
    check_in_sync_steps: int = 0
    stall_check_time_s: float | None = None
    stall_shutdown_time_s: float = 0.0
    deadlock_timeout_s: float = 60.0
    timeline: str = ""
    timeline_mark_cycles: bool = False
    checkpoint_dir: str = ""
    checkpoint_every: int = 1
    slow_worker: str = "report"
    log_level: str = "warning"
    log_hide_time: bool = False

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
        values: dict[str, Any] = {
            setting.field: reader.value(setting.name) for setting in TABLE.values() if setting.field
        }
        values.update(_places(reader))
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
        values["hostname"] = values["hostname"] or socket.gethostname()
        values["fusion_threshold_is_set"] = bool(reader.text("HOROVOD_FUSION_THRESHOLD"))
        values["start_timeout_s"] = _start_timeout_s(reader)
        values["stall_check_time_s"] = _stall_check_time_s(reader)
        advice = [*advice_on(reader), *_drop_what_does_not_fit(values)]
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
        owners = [each for each in dict.fromkeys(hosts) if hosts.count(each) > local_rank]
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
        if self.start_timeout_s <= 0:
            raise StartError(f"HOROVOD_START_TIMEOUT={self.start_timeout_s:g} is not above 0")

    def _can_meet(self) -> bool:
        return self.foreign_launcher is not None or bool(self.bootstrap_address)


def _places(reader: SettingsReader) -> dict[str, Any]:
    """Where this process is in the job, from our launcher or from another launcher."""
    values: dict[str, Any] = {"is_placed": bool(reader.text(_CROSS_RANK_NAMES[0]))}
    rank_names, local_names = _RANK_NAMES, _LOCAL_RANK_NAMES
    values["foreign_launcher"] = None
    if (found := find_foreign_launcher(reader.variables)) is not None:
        values["foreign_launcher"], rank_names, local_names = found
        values["is_placed"] = False
    values["rank"], values["size"] = reader.rank_and_size([rank_names])
    values["local_rank"], values["local_size"] = reader.rank_and_size([local_names])
    values["cross_rank"], values["cross_size"] = reader.rank_and_size([_CROSS_RANK_NAMES])
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


def _stall_check_time_s(reader: SettingsReader) -> float | None:
    time_s: float | None = reader.value("HOROVOD_STALL_CHECK_TIME_SECONDS")
    return 0.0 if reader.value("HOROVOD_STALL_CHECK_DISABLE") else time_s


def _drop_what_does_not_fit(values: dict[str, Any]) -> list[str]:
    """Resets values that contradict others, and returns what to tell the user about it."""
    advice = []
    check_s, shutdown_s = values["stall_check_time_s"], values["stall_shutdown_time_s"]
    if check_s is not None and 0 < shutdown_s < check_s:
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
