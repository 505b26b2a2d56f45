"""Settings of one rank: a frozen :class:`Config`, and the only reader of ``os.environ``."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1024 * 1024
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")

# Where a rank and its size are read from: our launcher's variables, then those of Open MPI and of
# MPICH and Intel MPI, which start the processes themselves.
_RANK_NAMES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL_RANK_NAMES = (
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_CROSS_RANK_NAMES = (("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),)


def inherited_environment() -> dict[str, str]:
    """A copy of the variables of this process, for the processes that a launcher starts."""
    return dict(os.environ)


@dataclass(frozen=True)
class Config:
    """Everything that a rank must know to join its job.

    Attributes:
        rank, size: this process among all processes of the job.
        local_rank, local_size: among the processes of this host.
        cross_rank, cross_size: among the processes that hold the same local rank.
        hostname: the name of this host as the launcher knows it.
        rendezvous_addr, rendezvous_port: where the job's key-value store listens;
            an empty address means a job of one rank.
        secret_file: a file of mode 0600 that holds the job's secret.
        start_timeout_s: seconds to wait for all ranks to appear and connect.
        fusion_threshold: bytes of tensors that may travel in one fused batch; 0 turns fusion off.
        cache_capacity: names for which the negotiation is remembered; 0 turns the cache off.
        stall_check_time_s: seconds after which missing ranks are reported; 0 turns it off.
        stall_shutdown_time_s: seconds after which a stalled job is ended; 0 means never.
        log_level: trace, debug, info, warning, error or fatal.
        elastic: whether the job may change its size while it runs.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    hostname: str = "localhost"
    rendezvous_addr: str = ""
    rendezvous_port: int = 0
    secret_file: str = ""
    start_timeout_s: float = 30.0
    fusion_threshold: int = 64 * MIB
    cache_capacity: int = 1024
    stall_check_time_s: float = 60.0
    stall_shutdown_time_s: float = 0.0
    log_level: str = "warning"
    elastic: bool = False

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> Config:
        """Reads the settings that the launcher left in the environment.

        Args:
            environ: the variables; those of this process if None.

        Raises:
            StartError: a variable has a value that makes no sense; the message names it.
        """
        env = _Environment(os.environ if environ is None else environ)
        rank, size = env.rank_and_size(_RANK_NAMES)
        local_rank, local_size = env.rank_and_size(_LOCAL_RANK_NAMES)
        cross_rank, cross_size = env.rank_and_size(_CROSS_RANK_NAMES)
        stall_time_s = env.number("HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0)
        config = Config(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross_rank,
            cross_size=cross_size,
            hostname=env.text("HOROVOD_HOSTNAME") or socket.gethostname(),
            rendezvous_addr=env.text("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
            rendezvous_port=env.integer("HOROVOD_GLOO_RENDEZVOUS_PORT", 0),
            secret_file=env.text("HOROVOD_SECRET_FILE"),
            start_timeout_s=env.number("HOROVOD_START_TIMEOUT", 30.0),
            fusion_threshold=env.integer("HOROVOD_FUSION_THRESHOLD", 64 * MIB),
            cache_capacity=env.integer("HOROVOD_CACHE_CAPACITY", 1024),
            stall_check_time_s=0.0 if env.flag("HOROVOD_STALL_CHECK_DISABLE") else stall_time_s,
            stall_shutdown_time_s=env.number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0),
            log_level=env.text("HOROVOD_LOG_LEVEL").lower() or "warning",
            elastic=env.flag("HOROVOD_ELASTIC"),
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.size > 1 and not self.rendezvous_addr:
            raise StartError(
                f"rank {self.rank} of {self.size} was not told where the job's store listens "
                "(HOROVOD_GLOO_RENDEZVOUS_ADDR is missing): start the script with horovodrun"
            )
        if not (self.rendezvous_addr == "" or 0 < self.rendezvous_port < 65536):
            raise StartError(f"HOROVOD_GLOO_RENDEZVOUS_PORT={self.rendezvous_port} is not a port")
        if self.log_level not in LOG_LEVELS:
            raise StartError(
                f"HOROVOD_LOG_LEVEL={self.log_level!r} is none of {', '.join(LOG_LEVELS)}"
            )
        for name, value in (
            ("HOROVOD_FUSION_THRESHOLD", self.fusion_threshold),
            ("HOROVOD_CACHE_CAPACITY", self.cache_capacity),
            ("HOROVOD_STALL_CHECK_TIME_SECONDS", self.stall_check_time_s),
            ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", self.stall_shutdown_time_s),
        ):
            if value < 0:
                raise StartError(f"{name}={value} is negative")
        if self.start_timeout_s <= 0:
            raise StartError(f"HOROVOD_START_TIMEOUT={self.start_timeout_s:g} is not above 0")


@dataclass(frozen=True)
class _Environment:
    """Typed look-ups in a mapping of environment variables."""

    variables: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.variables.get(name, "").strip()

    def integer(self, name: str, default: int) -> int:
        text = self.text(name)
        try:
            return int(text) if text else default
        except ValueError:
            raise StartError(f"{name}={text!r} is not an integer") from None

    def number(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            number = float(text) if text else default
        except ValueError:
            raise StartError(f"{name}={text!r} is not a number") from None
        if not math.isfinite(number):
            raise StartError(f"{name}={text!r} is not finite")
        return number

    def flag(self, name: str) -> bool:
        """True for an integer that is not 0 and for true, yes, on; unset is False."""
        text = self.text(name).lower()
        if text in ("true", "yes", "on"):
            return True
        if text in ("", "false", "no", "off"):
            return False
        return self.integer(name, 0) != 0

    def rank_and_size(self, candidates: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """The first pair of variables that is set; (0, 1) if none is."""
        for rank_name, size_name in candidates:
            given = [name for name in (rank_name, size_name) if self.text(name)]
            if len(given) == 1:
                missing = size_name if given[0] == rank_name else rank_name
                raise StartError(f"{given[0]} is set but {missing} is not; set both or neither")
            if given:
                return self._rank_of_size(rank_name, size_name)
        return 0, 1

    def _rank_of_size(self, rank_name: str, size_name: str) -> tuple[int, int]:
        rank, size = self.integer(rank_name, 0), self.integer(size_name, 1)
        if size < 1:
            raise StartError(f"{size_name}={size} is not a number of processes")
        if not 0 <= rank < size:
            raise StartError(f"{rank_name}={rank} is not in 0 … {size - 1}, as {size_name}={size}")
        return rank, size
