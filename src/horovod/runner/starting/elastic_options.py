"""Reads the options of an elastic job, from flags or arguments of ``horovod.run``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError, UsageError
from horovod.runner.placing.discovery import HostDiscoveryScript
from horovod.runner.starting.requests import ElasticRequest
from horovod.runner.supervision.elastic.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.placing.hosts import Host
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.requests import Asked, LaunchOptions

DEFAULT_TIMEOUT_S = Assignment.elastic_timeout_s
_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"
_WORKER_TIMEOUT = "HOROVOD_WORKER_TIMEOUT"
# Who is patient with stalls, or not, is so with silence.
_STALL_PATIENCE = "HOROVOD_STALL_CHECK_TIME_SECONDS"


def elastic_request(
    asked: Asked,
    num_proc: int,
    hosts: Sequence[Host],
    settings: JobSettings,
    options: LaunchOptions,
) -> ElasticRequest:
    """Check what was given, and fill in what was not.

    Args:
        asked: what was given.
        num_proc: with how many ranks to start.
        hosts: the fixed ones; empty with a discovery.
        settings: what to run; its variables have the defaults of the timeouts.
        options: how the launcher behaves.

    Raises:
        UsageError: the numbers contradict one another.
        StartError: HOROVOD_ELASTIC_TIMEOUT or HOROVOD_WORKER_TIMEOUT makes no sense.
    """
    _check(asked, num_proc, hosts)
    range_s = asked.cooldown_range
    environ = {**settings.environ, **settings.variables}
    rules = Rules(
        num_proc,
        asked.min_num_proc or 0,
        asked.max_num_proc,
        elastic_timeout_s=asked.elastic_timeout or elastic_timeout_s_of(environ),
        reset_limit=asked.reset_limit,
        cooldown_range=None if range_s is None else (range_s[0], range_s[1]),
        grace_s=settings.grace_s,
        worker_timeout_s=asked.worker_timeout or worker_timeout_s_of(environ),
        fixed_hosts=bool(hosts) and not asked.join_file,
    )
    discovery = asked.host_discovery
    if asked.host_discovery_script:
        discovery = HostDiscoveryScript(asked.host_discovery_script, asked.slots)
    inviting = None
    if asked.join_file:
        from horovod.runner.starting.joined_hosts import join_file

        inviting = partial(join_file, asked.join_file)
    own = () if discovery is not None else _with_slots(hosts, asked, rules)
    return ElasticRequest(settings, options, rules, discovery, own, inviting)


def elastic_timeout_s_of(environ: Mapping[str, str]) -> float:
    """For how many seconds to wait for workers, as an environment says.

    Raises:
        StartError: the variable makes no sense.
    """
    return _seconds(environ, _TIMEOUT, DEFAULT_TIMEOUT_S)


def worker_timeout_s_of(environ: Mapping[str, str]) -> float:
    """For how many seconds a worker may be silent, as an environment says.

    Raises:
        StartError: a variable makes no sense.
    """
    default_s = SettingsReader(environ).value(_STALL_PATIENCE) or Rules.worker_timeout_s
    return _seconds(environ, _WORKER_TIMEOUT, default_s)


def _check(asked: Asked, num_proc: int, hosts: Sequence[Host]) -> None:
    most = asked.max_num_proc
    if most is not None and most < num_proc:
        raise UsageError(f"--max-np {most} is less than -np {num_proc}")
    if asked.min_num_proc is not None and asked.min_num_proc < 1:
        raise UsageError(f"--min-np is {asked.min_num_proc}, but must be at least 1")
    if asked.host_discovery_script and asked.host_discovery is not None:
        raise UsageError("host_discovery_script and host_discovery are mutually exclusive")
    discovers = asked.host_discovery_script or asked.host_discovery is not None
    if discovers and hosts:
        raise UsageError("-H or -hostfile, and --host-discovery-script are mutually exclusive")
    for name, number, least in (
        ("--slots-per-host", asked.slots, 1),
        ("--reset-limit", asked.reset_limit, 0),
    ):
        if number is not None and number < least:
            raise UsageError(f"{name} is {number}, but must be at least {least}")
    for name, seconds in (
        ("--elastic-timeout", asked.elastic_timeout),
        ("--worker-timeout", asked.worker_timeout),
    ):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{name} is {seconds:g}, but must be more than 0 seconds")
    if asked.cooldown_range is not None and len(asked.cooldown_range) != 2:
        raise UsageError(f"the cool-down range has {len(asked.cooldown_range)} numbers, not two")


def _with_slots(hosts: Sequence[Host], asked: Asked, rules: Rules) -> tuple[Host, ...]:
    """A single host without a number may have all ranks; of several, each has one."""
    default = asked.slots or ((rules.max_np or rules.np) if len(hosts) == 1 else 1)
    return tuple(
        replace(host, slots=default if host.slots is None else host.slots) for host in hosts
    )


def _seconds(environ: Mapping[str, str], name: str, default_s: float) -> float:
    text = environ.get(name, "")
    try:
        seconds = float(text) if text else default_s
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StartError(f"{name} is {text!r}, but must be a number of seconds above 0")
    return seconds
