"""``horovodrun --dry-run``: what would run on each host, without starting anything."""

from __future__ import annotations

import os
import re
import shlex
import socket
from typing import TYPE_CHECKING

from horovod._job.environment import StoreAddress
from horovod._rank.cores import computing_cores
from horovod.runner.placing.plan import INTERFACE_NAMES, make_plan
from horovod.runner.placing.threads import thread_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.placing.hosts import Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.starting.requests import FixedRequest

# Shown with their values; all others are only counted, because they may hold anything.
_SHOWN = re.compile(r"_?(?:HOROVOD|NCCL)_\w+|PYTHONUNBUFFERED")
_CONFIDENTIAL = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|PRIVATE|_KEY$", re.IGNORECASE)
# Known only when the job's store listens.
_LATER = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "<address of the store>",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "<port of the store>",
}
# Known only to the agent of each host, in a job of several.
_FOUND_THERE = "<of the host: what leads to the others>"


def run(request: FixedRequest) -> int:
    """Print what would run; return the exit code."""
    print(describe_job(request.slots, request.settings))
    return 0


def describe_job(slots: Sequence[Slot], settings: JobSettings) -> str:
    """Return the output of ``--dry-run``.

    Args:
        slots: where each rank would run.
        settings: what would run.

    Returns:
        A block per host: command, working directory, variables, ranks. No secret is in it.
    """
    hostnames = dict.fromkeys(slot.hostname for slot in slots)
    # Without a look into the network: a name that is not plainly this machine is another one.
    remote = [name for name in hostnames if name not in ("localhost", socket.gethostname())]
    jobs = make_plan(slots, settings, StoreAddress("", 0, b""), os.getpid(), remote)
    size = len(slots)
    title = (
        f"{size} rank{'s' if size > 1 else ''} on {len(jobs)} host{'s' if len(jobs) > 1 else ''}"
    )
    return "\n".join([title, *(_block(job) for job in jobs)])


def _block(job: AgentJob) -> str:
    shown = {name: value for name, value in job.env.items() if _SHOWN.fullmatch(name)}
    num_hidden = len(job.env.keys() - shown.keys() - _LATER.keys())
    names = ",".join(job.network_interfaces)
    found_there = f"<what the host has of {names}>" if names else _FOUND_THERE
    shown = {**dict.fromkeys(INTERFACE_NAMES, found_there), **shown, **_LATER, **_threads(job)}
    hidden = f"{num_hidden} other variable{'' if num_hidden == 1 else 's'}"
    return "\n".join(
        [
            "",
            f"host {job.hostname}",
            *(f"  command    {shlex.join(command)}" for command in job.commands),
            f"  directory  {job.cwd}",
            *_variables(shown),
            f"  and {hidden} of this environment",
            *(_rank(worker.rank, worker.env) for worker in job.workers),
        ]
    )


def _threads(job: AgentJob) -> dict[str, str]:
    """The agent divides the cores of its host; this one is known here."""
    num_ranks = len(job.workers)
    if not job.remote:
        return thread_variables(job.env, computing_cores(), num_ranks)
    share = f"<its cores / {num_ranks} ranks>"
    return dict.fromkeys(thread_variables(job.env, num_ranks, num_ranks), share)


def _variables(env: Mapping[str, str]) -> list[str]:
    return [f"  variable   {name}={_value(name, env[name])}" for name in sorted(env)]


def _value(name: str, value: str) -> str:
    if _CONFIDENTIAL.search(name) and name != "HOROVOD_SECRET_FILE":
        return "<not shown>"
    return value if value.startswith("<") else shlex.quote(value)


def _rank(rank: int, env: Mapping[str, str]) -> str:
    places = " ".join(f"{name}={env[name]}" for name in sorted(env))
    return f"  rank {rank}  {places}"
