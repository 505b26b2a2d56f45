"""From the settings of a rank to a running engine, and back."""

from __future__ import annotations

import logging
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod import _native
from horovod._base import files, log
from horovod._rank.cores import usable_cores
from horovod._rank.libraries import gpu
from horovod._rank.reports.position import PositionWatch, StackDump
from horovod._rank.reports.steps import Steps
from horovod._rank.reports.wait import WaitReport
from horovod._rendezvous.arrival import called_key, connected_key, process_age_s
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod._rendezvous.peers import connect_peers
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.versions import check_version
from horovod._rendezvous.waits import POSSIBLE_KEY
from horovod._settings.config import NATIVE_LOG_LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.libraries.mpi import ProcessMpi
    from horovod._rank.reports.shown import ShowingProcess
    from horovod._rank.torch_place import TorchPlace
    from horovod._rendezvous.incarnation import Incarnation
    from horovod._rendezvous.peers import Connections
    from horovod._settings.config import Config

_logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 5.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RunningEngine:
    """The engine of this process, and what answers for it where the process is.

    Attributes:
        engine: for submitting operations.
        config: the settings of this rank, with its place among the hosts.
    """

    engine: _native.Engine
    config: Config
    _dump: StackDump
    _watch: PositionWatch
    _waits: WaitReport | None
    _shown: ShowingProcess | None

    def close(self, reason: str) -> None:
        """Leaves the job and tells the peers why; idempotent."""
        _logger.debug("rank %d leaves the job: %s", self.config.rank, reason)
        if self._waits is not None:
            self._waits.close(1.0)
        self.engine.close(reason)
        if self._shown is not None:
            self._shown.close()
        self._watch.join(_END_TIMEOUT_S)
        self._dump.close()

    def abandon(self) -> None:
        """In the child of a fork: the engine is the parent's."""
        self.engine.abandon()


def start_engine(
    config: Config,
    incarnation: Incarnation,
    mpi: ProcessMpi,
    steps: Steps | None = None,
    torch_place: TorchPlace | None = None,
) -> RunningEngine:
    """Connects to the other ranks and starts the engine of this one.

    Args:
        config: the settings of this rank.
        incarnation: of the engines of the job; the same on all ranks.
        mpi: of this process; used if the settings say that it moves the data.
        steps: counts the training steps; None if nobody does.
        torch_place: tells PyTorch where this rank is; None if it is not told.

    Raises:
        StartError: a rank did not appear in time, the secret is wrong, or MPI cannot be used.
    """
    if config.cpu_operations == "mpi":
        mpi.begin(config)
    dump = StackDump()
    free_port = torch_place.offer_port(config) if torch_place is not None else 0
    link_bytes_per_s = 0.0
    names: Sequence[str] = [f"{config.hostname}:{os.getpid()}"]
    try:
        if config.size == 1:
            options = engine_options(config, names, dump.arguments, mpi=mpi)
            engine = _native.Engine(0, 1, options, None, (), ())
            master = _LOOPBACK, free_port
        else:
            engine, config, peers = _connect(config, incarnation, dump, mpi, free_port)
            link_bytes_per_s, master = _median_rate(peers.speeds), peers.master
            names = peers.rank_names
    except BaseException:
        dump.close()
        raise
    if torch_place is not None:
        torch_place.write(config, *master)
    shown = _show(config, names, engine, dump)
    waits = None
    if config.rendezvous_addr:
        waits = WaitReport(engine, config, steps or Steps(), link_bytes_per_s)
    running = RunningEngine(engine, config, dump, PositionWatch(engine), waits, shown)
    place = config.rank, config.size, config.hostname, os.getpid()
    _logger.info("rank %d of %d runs on %s as process %d", *place)
    if config.timeline and config.timeline.upper() != "DYNAMIC":
        try:
            path = _of_generation(config.timeline, config.generation)
            if config.rank == 0:
                files.refuse_link_of_others(path)
            engine.start_timeline(path, config.timeline_mark_cycles)
        except BaseException as error:
            running.close(f"its timeline could not be started: {error}")
            raise
    return running


def _show(
    config: Config, names: Sequence[str], engine: _native.Engine, dump: StackDump
) -> ShowingProcess | None:
    """Let those who asked for it see the job, if no launcher of ours does."""
    if not _is_to_be_shown(config):
        return None
    from horovod._rank.reports.shown import ShowingProcess, hosts_of

    try:
        return ShowingProcess(config, hosts_of(names))
    except BaseException as error:
        if isinstance(error, Exception) and not config.asks_to_watch:
            # Those who run the cluster have set the variables, not the user.
            _logger.warning("nothing is told to %s: %s", " and ".join(config.exports), error)
            return None
        engine.close(f"the job cannot be shown: {error}")
        dump.close()
        raise


def _is_to_be_shown(config: Config) -> bool:
    """Return whether this process has to start the one that shows the job."""
    if config.rank != 0 or not config.holds_store:
        return False
    # Most jobs have a launcher of ours, and are to start soon.
    from horovod._rank.reports.shown import is_asked_for

    return is_asked_for(config)


def _connect(
    config: Config, incarnation: Incarnation, dump: StackDump, mpi: ProcessMpi, free_port: int
) -> tuple[_native.Engine, Config, Connections[_native.LocalPort]]:
    secret = secret_of(config)
    where = config.rendezvous_addr, config.rendezvous_port
    _logger.log(log.TRACE, "the store of the job is at %s port %d", *where)
    store = StoreClient(
        config.rendezvous_addr, config.rendezvous_port, secret, config.start_timeout_s
    )
    try:
        who = f"rank {config.rank} ({config.hostname}:{os.getpid()})"
        check_version(store, who, incarnation.failed_key)
        if incarnation.is_start_of_job:
            store.set(called_key(config.rank), b"%.3f" % process_age_s())
        if _is_to_be_shown(config):  # ranks look for it once, soon after they have connected
            store.set(POSSIBLE_KEY, b"")
        began_s = time.monotonic()
        peers = connect_peers(
            config, secret, store, _native.LocalPort, incarnation, free_port=free_port
        )
        _logger.debug("the connections to the other ranks took %.3f s", time.monotonic() - began_s)
        if incarnation.is_start_of_job:
            store.set(connected_key(config.rank), b"%.3f" % (time.monotonic() - began_s))
    finally:
        store.close()
    try:
        config = config.at_hosts(peers.hosts)
        engine = _native.Engine(
            config.rank,
            config.size,
            engine_options(config, peers.rank_names, dump.arguments, peers.speeds, mpi),
            peers.port,
            peers.local_peers,
            peers.remote_peers,
            peers.hosts,
        )
        return engine, config, peers
    except BaseException:
        peers.close()
        raise


def _of_generation(path: str, generation: int) -> str:
    """A file of its own for each generation, so that none overwrites what an earlier one wrote.

    Example:
        >>> _of_generation("timeline.json", 2)
        'timeline.generation-2.json'
    """
    if generation == 0 or not path:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.generation-{generation}{suffix}"


def _autotune(config: Config) -> _native.AutotuneOptions | None:
    if not config.autotune:
        return None
    log_path = _of_generation(config.autotune_log, config.generation) if config.rank == 0 else ""
    files.refuse_link_of_others(log_path)
    return _native.AutotuneOptions(
        fixed=config.fusion_threshold_is_set,
        warmup_samples=config.autotune_warmup_samples,
        steps_per_sample=config.autotune_steps_per_sample,
        max_samples=config.autotune_max_samples,
        log_path=log_path,
    )


def _core_of(config: Config) -> int:
    cores = config.thread_affinity
    return cores[config.local_rank] if config.local_rank < len(cores) else -1


def _median_rate(speeds: LinkSpeeds) -> float:
    """Return the median speed of the known links, in bytes per second; 0 if none is known."""
    known = [rate for rate in speeds.bytes_per_s if rate > 0]
    return statistics.median(known) if known else 0.0


def _costs(speeds: LinkSpeeds) -> _native.CostConstants:
    return _native.CostConstants(
        network_latency_s=speeds.latency_s,
        network_bytes_per_s=_median_rate(speeds),
        link_bytes_per_s=speeds.bytes_per_s,
    )


def engine_options(
    config: Config,
    rank_names: Sequence[str],
    stack_dump: tuple[int, int, int] = (0, 0, 0),
    speeds: LinkSpeeds | None = None,
    mpi: ProcessMpi | None = None,
) -> _native.EngineOptions:
    """Return the engine's options that follow from the settings of a rank.

    Args:
        config: the settings.
        rank_names: of all ranks, for messages.
        stack_dump: how another thread gets the stacks of this process, see :class:`StackDump`.
        speeds: of the network between the hosts, if they were measured.
        mpi: of this process; only needed if MPI moves the data.
    """
    return _native.EngineOptions(
        fusion_threshold=config.fusion_threshold,
        cache_capacity=config.cache_capacity,
        stall_check_time_s=config.stall_check_time_s,
        stall_shutdown_time_s=config.stall_shutdown_time_s,
        deadlock_timeout_s=config.deadlock_timeout_s,
        rank_names=rank_names,
        deterministic=config.deterministic,
        least_log_level=NATIVE_LOG_LEVELS[config.log_level],
        log_time=not config.log_hide_time,
        stack_dump=stack_dump,
        fuse_groups=not config.disable_group_fusion,
        core=_core_of(config),
        num_cores=usable_cores(),
        autotune=_autotune(config),
        allreduce_algorithm=config.allreduce_algorithm,
        costs=_costs(speeds or LinkSpeeds()),
        mpi=mpi.world(config) if mpi and config.cpu_operations == "mpi" else None,
        gpu=gpu.options(config),
    )
