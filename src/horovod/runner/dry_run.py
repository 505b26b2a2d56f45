"""``horovodrun --dry-run``: what would run on each host, without starting anything. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from horovod.runner.plan import StoreAddress, make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.hosts import Slot
    from horovod.runner.plan import AgentJob, JobSettings

# Shown with their values; all others are only counted, because they may hold anything.
_SHOWN = re.compile(r"_?(?:HOROVOD|NCCL)_\w+|PYTHONUNBUFFERED")
_CONFIDENTIAL = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|PRIVATE|_KEY$", re.IGNORECASE)
# Known only when the job's store listens.
_LATER = {
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "<address of the store>",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "<port of the store>",
}


def describe_job(slots: Sequence[Slot], settings: JobSettings) -> str:
    """What ``--dry-run`` prints.

    Args:
        slots: where each rank would run.
        settings: what would run.

    Returns:
        A block per host: command, working directory, variables, ranks. No secret is in it.
    """
    jobs = make_plan(slots, settings, StoreAddress("", 0, b""))
    size = len(slots)
    title = (
        f"{size} rank{'s' if size > 1 else ''} on {len(jobs)} host{'s' if len(jobs) > 1 else ''}"
    )
    return "\n".join([title, *(_block(job) for job in jobs)])


def _block(job: AgentJob) -> str:
    shown = {**{name: value for name, value in job.env.items() if _SHOWN.fullmatch(name)}, **_LATER}
    num_hidden = len(job.env.keys() - shown.keys())
    return "\n".join(
        [
            "",
            f"host {job.hostname}",
            f"  command    {shlex.join(job.command)}",
            f"  directory  {job.cwd}",
            *_variables(shown),
            f"  and {num_hidden} other variables of this environment",
            *(_rank(rank_job.rank, rank_job.env) for rank_job in job.ranks),
        ]
    )


def _variables(env: Mapping[str, str]) -> list[str]:
    return [f"  variable   {name}={_value(name, env[name])}" for name in sorted(env)]


def _value(name: str, value: str) -> str:
    if _CONFIDENTIAL.search(name) and name != "HOROVOD_SECRET_FILE":
        return "<not shown>"
    return value if value.startswith("<") else shlex.quote(value)


def _rank(rank: int, env: Mapping[str, str]) -> str:
    places = " ".join(f"{name}={env[name]}" for name in sorted(env))
    return f"  rank {rank}  {places}"
