"""``horovod.run``: runs a Python function on every rank of a new job."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from horovod._job.function import check_call
from horovod._job.python_path import with_horovod_on_path
from horovod._settings.config import inherited_environment
from horovod.errors import UsageError
from horovod.runner.function.call import RemoteFunction, packed
from horovod.runner.function.notebook import is_notebook
from horovod.runner.function.task import QUIET
from horovod.runner.output.console import Console, say
from horovod.runner.placing.hosts import Host, assign, parse_hosts, read_hostfile
from horovod.runner.placing.plan import JobSettings
from horovod.runner.settings.flags import variables_of
from horovod.runner.starting.before_start import check_settings
from horovod.runner.starting.controller import choose, find_surroundings, request_of
from horovod.runner.starting.launch import config_of, start
from horovod.runner.starting.modes import Mode, check_options
from horovod.runner.starting.requests import (
    Asked,
    Caller,
    FixedRequest,
    LaunchOptions,
    MpiRequest,
)
from horovod.runner.starting.ssh import SshOptions
from horovod.runner.system.signals import wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.starting.requests import JobRequest
    from horovod.runner.supervision.sources import Discovery

T = TypeVar("T")

_TASK = "horovod.runner.function.task"

# Arguments of elastic jobs.
_ELASTIC = (
    *("min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range"),
    *("host_discovery_script", "host_discovery", "elastic_timeout", "worker_timeout"),
)
_CHOSEN_BY = {
    Mode.ELASTIC: "min_num_proc, host_discovery_script or host_discovery",
    Mode.MPI: "use_mpi",
}

_RENAMED = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc"}


def run(
    func: Callable[..., T],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    config: str | Mapping[str, Any] | None = None,
    host_discovery: Discovery | None = None,
    elastic_timeout: float | None = None,
    worker_timeout: float | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
) -> list[T]:
    """Calls ``func(*args, **kwargs)`` on every rank of a new job and returns what they returned.

    May be called from any thread and from a notebook. What the ranks print appears on this
    process's stdout and stderr, as with ``horovodrun``.

    Example:
        >>> import horovod
        >>> horovod.run(pow, args=(2, 5), num_proc=2)
        [32, 32]

    Args:
        func: called on each rank; it, its arguments and its result are sent with cloudpickle.
        args, kwargs: arguments, the same on all ranks.
        num_proc: how many ranks to start; ``np`` is its deprecated name.
        hosts: such as ``worker-0:2,worker-1:2``; other machines are reached through ssh.
        hostfile: file with one ``host slots=N`` per line, in place of ``hosts``.
        start_timeout: seconds until all ranks must have found each other.
        output_filename: folder for the output of each rank, as ``--output-filename``.
        verbose: 1 or more tells each step on stderr.
        network_interfaces: names; ``network_interface`` is its deprecated form with commas.
        executable: the Python that runs the ranks; this one if None.
        ssh_port, ssh_identity_file: of sshd on all hosts; a private key.
        config: path of a config file, or its contents: ``{"params": {"fusion_threshold_mb": 32}}``.
        use_mpi, mpi_args: mpirun starts the ranks, with these further options; as ``--mpi``.
        use_gloo, disable_cache: without effect; by default this process starts the ranks.
        min_num_proc, max_num_proc: the fewest and the most ranks; ``min_num_proc`` makes a job
            elastic, as a discovery does. ``min_np`` and ``max_np`` are their deprecated names.
        host_discovery_script, host_discovery: see docs/elastic.md; a command, or an object.
        slots: of hosts that are named without a number.
        reset_limit, cooldown_range: how often ranks may change; how many seconds a host rests.
        elastic_timeout, worker_timeout: seconds to wait for slots; of silence of a worker.
        checkpoint_dir, checkpoint_every: where every n-th commit of elastic training is written.

    Returns:
        One result per rank, in the order of ranks. Of an elastic job, the results of the first
        ``min_num_proc`` ranks, or of ``num_proc``, by the ranks they had at the end.

    Raises:
        RankFailedError: a rank failed; it holds the traceback of that rank.
        UsageError: the arguments contradict each other or are not supported.
        StartError: the job could not be started.
    """
    arguments = {name: value for name, value in locals().items() if value is not None}
    __tracebackhide__ = True  # in a notebook, which shows the traceback of the rank
    return _run(**_renamed(arguments))


def _run(func: Callable[..., Any], args: tuple[Any, ...], num_proc: int, **given: Any) -> list[Any]:
    """:func:`run` without the arguments that are None or deprecated."""
    __tracebackhide__ = True
    _check(given)
    kwargs = given.get("kwargs", {})
    check_call(func, args, kwargs)
    executable = given.get("executable")
    request, hostnames = _request(num_proc, executable, given)
    path = [] if executable else [entry for entry in sys.path if entry]
    payload = packed(func, args, dict(kwargs), path)
    is_quiet = QUIET in request.settings.command
    call = RemoteFunction(payload, hostnames, tells_others=is_quiet)
    with wakeups() as descriptor, Console(sys.stdout, sys.stderr) as console:
        caller = Caller(console, wakeups=descriptor, store_user=call.using)
        try:
            outcome = start(request, caller)
        except KeyboardInterrupt as interrupt:  # where the launcher was says nothing to its caller
            raise interrupt.with_traceback(None) from None
    return call.results(outcome)


def _request(
    num_proc: int, executable: str | None, given: Mapping[str, Any]
) -> tuple[JobRequest, list[str]]:
    """Return what to start, and the host of each rank, as far as it is known."""
    environ = inherited_environment()
    variables, controller = _variables(given)
    asked = Asked(**{name: given[name] for name in _ELASTIC if name in given})
    # A cell shows the error that ends a job; what its rank prints would be the same once more.
    told_once = (QUIET,) if is_notebook() and not asked.is_elastic else ()
    settings = JobSettings(
        command=(executable or sys.executable, "-m", _TASK, *told_once),
        cwd=os.getcwd(),
        environ=environ if executable else with_horovod_on_path(environ),
        variables=variables,
        network_interfaces=tuple(given.get("network_interfaces", ())),
        grace_s=config_of("HOROVOD_GRACE_SECONDS", environ).grace_s,
    )
    options = LaunchOptions(
        output_filename=given.get("output_filename"),
        start_timeout_s=given.get("start_timeout"),
        verbose=bool(given.get("verbose")),
        ssh=SshOptions(given.get("ssh_port"), given.get("ssh_identity_file", "")),
    )
    check_settings(settings, is_elastic=asked.is_elastic)
    mode = Mode.ELASTIC if asked.is_elastic else Mode.MPI if controller == "mpi" else Mode.FIXED
    modes = {name: Mode.ELASTIC for name in _ELASTIC if name in given}
    if controller == "mpi":
        modes["use_mpi"] = Mode.MPI
    if given.get("mpi_args"):
        modes["mpi_args"] = Mode.MPI
    check_options(modes, mode, _CHOSEN_BY, "horovod.run: ")
    if mode is Mode.ELASTIC:
        discovers = bool(asked.host_discovery_script) or asked.host_discovery is not None
        names_hosts = given.get("hosts") or given.get("hostfile")
        hosts = [] if discovers and not names_hosts else _hosts(given)
        # Not for every job: it takes its time to load.
        from horovod.runner.starting.elastic_options import elastic_request

        request = elastic_request(asked, num_proc, hosts, settings, options)
        return request, [""] * request.rules.min_np
    slots = assign(_hosts(given), num_proc)
    hostnames = [slot.hostname for slot in slots]
    if mode is Mode.FIXED:
        return FixedRequest(settings, options, slots), hostnames
    choice = choose(controller, find_surroundings(settings.environ))
    if options.verbose:
        say(sys.stderr, choice.line)
    mpi_args = given.get("mpi_args", "")
    return MpiRequest(settings, options, slots, mpi_args=mpi_args), hostnames


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """Moves the values of deprecated arguments to the names of today."""
    renamed = {name: value for name, value in given.items() if name not in _RENAMED}
    for old, new in _RENAMED.items():
        if old in given:
            _warn(f"{old} is deprecated, use {new}")
            renamed[new] = given[old]
    if "network_interface" in renamed:
        _warn("network_interface is deprecated, use network_interfaces")
        names = [name.strip() for name in renamed.pop("network_interface").split(",")]
        known = renamed.get("network_interfaces", ())
        renamed["network_interfaces"] = [*known, *filter(None, names)]
    return renamed


def _warn(text: str) -> None:
    # The frames are those of this function, _renamed, run and the caller.
    warnings.warn(f"horovod.run: {text}", DeprecationWarning, stacklevel=4)


def _check(given: Mapping[str, Any]) -> None:
    for one, other in (("hosts", "hostfile"), ("use_gloo", "use_mpi")):
        if given.get(one) and given.get(other):
            raise UsageError(f"horovod.run: {one} and {other} are mutually exclusive")
    if given.get("start_timeout", 1) <= 0:
        raise UsageError(
            f"horovod.run: start_timeout is {given['start_timeout']}; it must exceed 0"
        )


def _variables(given: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return variables from config and arguments, which win, and the controller's name."""
    variables, controller = {}, ""
    if "config" in given:
        # Not for every job: yaml takes its time to load.
        from horovod.runner.settings.config_file import parse_config, read_config_file

        config = given["config"]
        found = (
            parse_config(dict(config), {}, "horovod.run: config")
            if isinstance(config, Mapping)
            else read_config_file(config)
        )
        variables, controller = variables_of(found.values), found.controller
    if "start_timeout" in given:
        variables["HOROVOD_START_TIMEOUT"] = str(given["start_timeout"])
    for name in ("checkpoint_dir", "checkpoint_every"):
        if name in given:
            variables[f"HOROVOD_{name.upper()}"] = str(given[name])
    flags = {name: bool(given.get(f"use_{name}")) for name in ("gloo", "mpi")}
    return variables, request_of(flags, controller)


def _hosts(given: Mapping[str, Any]) -> list[Host]:
    if given.get("hosts"):
        return parse_hosts(given["hosts"])
    return read_hostfile(given["hostfile"]) if given.get("hostfile") else [Host("localhost", None)]
