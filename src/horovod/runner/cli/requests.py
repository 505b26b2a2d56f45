"""Makes a request of a command line; nothing below sees the options of a parser."""

from __future__ import annotations

import math
import os
import socket
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from horovod._settings.foreign_launchers import find_foreign_launcher
from horovod._settings.torch_variables import is_of_torchrun
from horovod.errors import UsageError
from horovod.runner.cli.options import CHANGES, EXAMPLE
from horovod.runner.output.console import say
from horovod.runner.placing.hosts import Host, assign, parse_hosts, read_hostfile
from horovod.runner.placing.plan import JobSettings
from horovod.runner.settings.flags import variables_of
from horovod.runner.starting.before_start import check_settings
from horovod.runner.starting.controller import Launcher, choose, find_surroundings, request_of
from horovod.runner.starting.launch import config_of
from horovod.runner.starting.modes import NAMES, Mode
from horovod.runner.starting.requests import (
    Asked,
    CheckRequest,
    ElasticRequest,
    FixedRequest,
    JobFileRequest,
    JoinRequest,
    LaunchOptions,
    MpiRequest,
    NodeRequest,
    Watching,
    Workload,
)
from horovod.runner.starting.ssh import SshOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.cli.options import CommandLine
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.settings.config_file import ConfigFile
    from horovod.runner.starting.controller import Choice
    from horovod.runner.starting.requests import Request

DEFAULT_CHECK_TIMEOUT_S = 30.0
MAX_GRACE_S = 1e6
_ASKED = (
    *("min_num_proc", "max_num_proc", "slots", "elastic_timeout", "reset_limit"),
    *("cooldown_range", "worker_timeout", "host_discovery_script", "join_file"),
)


def make_request(line: CommandLine, environ: Mapping[str, str]) -> Request:
    """Return what a command line asks for; the ranks inherit ``environ``.

    Raises:
        UsageError: an option does not fit the others, or has no sensible value.
        StartError: a variable of the environment has none.
    """
    return _Reader(line, environ).request()


class _Reader:
    """A command line, and the environment that it was written in."""

    def __init__(self, line: CommandLine, environ: Mapping[str, str]) -> None:
        self._line = line
        self._environ = environ
        self._values = line.values
        self._asked = Asked(**{name: getattr(line.values, name) for name in _ASKED})
        self._ssh = SshOptions(self._values.ssh_port, self._values.ssh_identity_file or "")
        lists = self._values.network_interfaces or []
        names = [name.strip() for names in lists for name in names.split(",")]
        self._interfaces = tuple(dict.fromkeys(name for name in names if name))

    def request(self) -> Request:
        """Make the request of the mode that the options choose."""
        mode = self._mode()
        self._line.check(mode)
        match mode:
            case Mode.CHECK:
                return self._check()
            case Mode.JOIN:
                return self._join()
            case Mode.JOB_FILE:
                return self._job_file()
        if not self._line.command:
            raise UsageError(
                f"no command was given: write it after the options, {EXAMPLE!r} for one"
            )
        match mode:
            case Mode.NODE:
                return self._node()
            case Mode.ELASTIC:
                return self._elastic()
        return self._fixed(mode)

    def _mode(self) -> Mode:
        values = self._values
        if values.check:
            return Mode.CHECK
        if values.join is not None:
            return Mode.JOIN
        if values.job_file is not None:
            _refuse_to_multiply(self._environ)
            return Mode.JOB_FILE
        if values.node_rank is not None or values.num_nodes is not None or values.rendezvous:
            return Mode.NODE
        _refuse_to_multiply(self._environ)
        if self._asked.is_elastic:
            return Mode.ELASTIC
        return Mode.FIXED if self._choice.launcher is Launcher.AGENTS else Mode.MPI

    # -- one for each mode

    def _fixed(self, mode: Mode) -> FixedRequest:
        values, slots = self._values, self._slots()
        settings, options = self._settings(mode), self._options
        if mode is Mode.FIXED:
            return FixedRequest(settings, options, slots, values.dry_run)
        more = self._choice.launcher, values.mpi_args, values.binding_args
        return MpiRequest(settings, options, slots, values.dry_run, *more)

    def _elastic(self) -> ElasticRequest:
        # Not for every job: it takes its time to load.
        from horovod.runner.starting.elastic_options import elastic_request

        num_proc = self._num_proc("say with how many ranks to start")
        settings, hosts = self._settings(Mode.ELASTIC), self._hosts_that_stay()
        return elastic_request(self._asked, num_proc, hosts, settings, self._options)

    def _node(self) -> NodeRequest:
        values = self._values
        if values.node_rank is None or values.num_nodes is None or not values.rendezvous:
            raise UsageError(
                "--node-rank, --num-nodes and --rendezvous go together: give all three"
            )
        num_proc = self._num_proc("say how many ranks to start on all nodes together")
        hosts = self._hosts({})
        if len(hosts) > 1:
            raise UsageError("--node-rank: name only this host and its ranks: -H localhost:N")
        node = values.node_rank, values.num_nodes, values.rendezvous, num_proc, hosts[0].slots
        return NodeRequest(self._settings(Mode.NODE), self._options, *node)

    def _job_file(self) -> JobFileRequest:
        values = self._values
        settings, options, backend = self._settings(Mode.JOB_FILE), self._options, values.backend
        hosts = self._hosts_that_stay(backend == "ray")
        changes = tuple(name for name, modes in self._line.given.items() if modes == CHANGES)
        more = changes, backend or "hosts", values.detach, values.resume, values.dry_run
        return JobFileRequest(settings, options, values.job_file, hosts, self._asked, *more)

    def _join(self) -> JoinRequest:
        hosts = self._hosts({})
        if len(hosts) != 1 or hosts[0].slots is None:
            raise UsageError("--join: say how many ranks this host may take: -H localhost:N")
        name = hosts[0].name if hosts[0].name != "localhost" else socket.gethostname()
        cwd = _working_directory()
        return JoinRequest(self._values.join, name, hosts[0].slots, self._environ, cwd)

    def _check(self) -> CheckRequest:
        timeout_s = self._values.start_timeout
        timeout_s = DEFAULT_CHECK_TIMEOUT_S if timeout_s is None else timeout_s
        hosts, environ = self._hosts(self._environ), self._environ
        return CheckRequest(
            hosts, environ, self._ssh, timeout_s, self._interfaces, self._workload(hosts)
        )

    def _workload(self, hosts: Sequence[Host]) -> Workload | None:
        step_ms, gradient_mb = self._values.step_ms, self._values.gradient_mb
        if step_ms is None and gradient_mb is None:
            return None
        if step_ms is None or gradient_mb is None:
            raise UsageError("a forecast needs both: --step-ms and --gradient-mb")
        if not (0 < step_ms < math.inf and 0 < gradient_mb < math.inf):
            raise UsageError("--step-ms and --gradient-mb must be above 0")
        if len(hosts) < 2:
            raise UsageError(
                "--step-ms and --gradient-mb forecast what the network between hosts costs: give "
                "two or more hosts, as in -H host1:4,host2:4"
            )
        return Workload(step_ms / 1e3, gradient_mb * 1e6)

    # -- parts of several requests

    @cached_property
    def _config(self) -> ConfigFile | None:
        if self._values.config_file is None:
            return None
        # Not for every job: pydantic takes its time to load.
        from horovod.runner.settings.config_file import read_config_file

        return read_config_file(self._values.config_file)

    @cached_property
    def _choice(self) -> Choice:
        flags = {name: getattr(self._values, name) for name in ("gloo", "mpi", "jsrun")}
        controller = "" if self._config is None else self._config.controller
        return choose(request_of(flags, controller), find_surroundings(self._environ))

    @property
    def _options(self) -> LaunchOptions:
        values = self._values
        return LaunchOptions(
            output_filename=values.output_filename,
            prefix_timestamp=values.prefix_timestamp,
            start_timeout_s=values.start_timeout,
            verbose=values.verbose,
            ssh=self._ssh,
            watching=self._watching,
        )

    @property
    def _watching(self) -> Watching:
        values = self._values
        ports = {"--dashboard": values.dashboard, "--metrics-port": values.metrics_port}
        for option, port in ports.items():
            if port is not None and not 0 <= port < 1 << 16:
                raise UsageError(f"{option} is {port}, but must be from 0 to 65535")
        return Watching(values.watch, values.dashboard, values.metrics_port)

    def _settings(self, mode: Mode) -> JobSettings:
        """Return the settings of the job; print advice on the config file and the launcher."""
        values, environ = vars(self._values), self._environ
        if self._config is not None:
            for line in self._config.advice:
                say(sys.stderr, line)
            given = {name: value for name, value in values.items() if value is not None}
            values = {**self._config.values, **given}
        choice = self._choice
        if values["verbose"] or choice.launcher is not Launcher.AGENTS:
            say(sys.stderr, choice.line)
        if choice.launcher is not Launcher.AGENTS and mode is not Mode.MPI:
            raise UsageError(
                f"{choice.launcher.value} cannot start {NAMES[mode]}: give --gloo, so that "
                "horovodrun starts the ranks"
            )
        variables = self._variables(values)
        settings = JobSettings(
            command=self._line.command,
            cwd=_working_directory(),
            environ=environ,
            variables=variables,
            network_interfaces=self._interfaces,
            grace_s=config_of("HOROVOD_GRACE_SECONDS", {**environ, **variables}).grace_s,
            stdin_rank=self._values.stdin_rank,
        )
        check_settings(settings, is_elastic=self._asked.is_elastic)
        return settings

    def _variables(self, values: Mapping[str, Any]) -> dict[str, str]:
        variables = variables_of(values)
        timeout_s, grace_s = self._values.start_timeout, self._values.grace
        if self._values.tcp:
            variables["NCCL_IB_DISABLE"] = "1"
        if timeout_s is not None:
            if timeout_s < 1:
                raise UsageError(f"--start-timeout is {timeout_s}, but must be at least 1")
            variables["HOROVOD_START_TIMEOUT"] = str(timeout_s)
        if grace_s is not None:
            if not 0 <= grace_s <= MAX_GRACE_S:
                raise UsageError(
                    f"--grace is {grace_s:g}, but must be from 0 to {MAX_GRACE_S:g} seconds"
                )
            variables["HOROVOD_GRACE_SECONDS"] = f"{grace_s:g}"
        return variables

    def _num_proc(self, advice: str) -> int:
        num_proc: int | None = self._values.num_proc
        if num_proc is None:
            raise UsageError(f"-np is missing: {advice}")
        return num_proc

    def _slots(self) -> list[Slot]:
        hosts = self._hosts(self._environ)
        if self._values.num_proc is None and not self._names_hosts and hosts[0].slots is not None:
            return assign(hosts, sum(host.slots or 1 for host in hosts))  # those of an allocation
        return assign(hosts, self._num_proc("say how many ranks to start"))

    @property
    def _names_hosts(self) -> bool:
        return self._values.hosts is not None or self._values.hostfile is not None

    def _hosts_that_stay(self, knows_hosts: bool = False) -> list[Host]:
        """None if a discovery, or a cluster that knows its hosts, will list them."""
        is_listed = knows_hosts or bool(self._asked.host_discovery_script)
        return [] if is_listed and not self._names_hosts else self._hosts(self._environ)

    def _hosts(self, environ: Mapping[str, str]) -> list[Host]:
        """The hosts that the user named, those of an allocation, or this machine."""
        if self._values.hosts is not None:
            return parse_hosts(self._values.hosts)
        if self._values.hostfile is not None:
            return read_hostfile(self._values.hostfile)
        from horovod.runner.placing.allocation import find_allocated_hosts

        return find_allocated_hosts(environ) or [Host("localhost", None)]


def _refuse_to_multiply(environ: Mapping[str, str]) -> None:
    """Refuse to start a whole job in the place of each rank, as below srun or mpirun."""
    found = find_foreign_launcher(environ)
    if found is None or not environ.get(found[1][1], "").isdigit():
        return
    launcher, (_, size), _ = found
    if launcher.master is not None and not is_of_torchrun(environ):
        return  # scripts export RANK and WORLD_SIZE for purposes of their own
    if int(environ[size]) > 1:
        raise UsageError(
            f"{launcher.name} started horovodrun {environ[size]} times ({size}): let it start the "
            "script itself, which finds its ranks, or give --node-rank"
        )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone: {error.strerror}") from None
