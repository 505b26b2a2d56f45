"""The hosts that a batch system gave to this job: Slurm and LSF. Pure.

Slurm shortens lists of hosts, ``node[1-3,07-09],login``, and numbers, ``2(x3),1``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.placing.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_HOSTS = 100_000
_COUNT = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def find_allocated_hosts(environ: Mapping[str, str]) -> list[Host]:
    """The hosts of the allocation in which this process runs, with a slot for each task.

    Args:
        environ: variables of this process.

    Returns:
        The hosts in their order; empty outside of an allocation.

    Raises:
        UsageError: what the batch system says makes no sense; the message names the variable.
    """
    if environ.get("SLURM_JOB_NODELIST"):
        return _slurm_hosts(environ)
    if environ.get("LSB_JOBID") and environ.get("LSB_MCPU_HOSTS"):
        return _lsf_hosts(environ["LSB_MCPU_HOSTS"])
    return []


def _slurm_hosts(environ: Mapping[str, str]) -> list[Host]:
    names = expand_hosts(environ["SLURM_JOB_NODELIST"])
    # Of the script's options; what an inner srun says of its own step does not count.
    text = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE") or "1"
    counts = expand_counts(text)
    if len(counts) == 1:
        counts *= len(names)
    if len(counts) != len(names):
        raise UsageError(
            f"SLURM_JOB_NODELIST names {len(names)} hosts, but SLURM_TASKS_PER_NODE={text} is "
            f"about {len(counts)}: name the hosts with -H"
        )
    return [Host(name, count) for name, count in zip(names, counts, strict=True)]


def _lsf_hosts(text: str) -> list[Host]:
    words = text.split()
    if len(words) % 2 or not all(word.isdigit() for word in words[1::2]):
        raise UsageError(f"LSB_MCPU_HOSTS={text!r} is not a list of hosts and numbers")
    return [Host(name, int(count)) for name, count in zip(words[::2], words[1::2], strict=True)]


def expand_counts(text: str) -> list[int]:
    """Reads Slurm's list of numbers: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        UsageError: it is none.
    """
    counts: list[int] = []
    for entry in text.split(","):
        match = _COUNT.fullmatch(entry.strip())
        if match is None or int(match[2] or 1) > _MAX_HOSTS or int(match[1]) == 0:
            raise UsageError(f"SLURM_TASKS_PER_NODE={text!r} is not a list such as '2(x3),1'")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """Reads Slurm's list of hosts: ``n[1-2,07],m`` is n1, n2, n07, m.

    Raises:
        UsageError: it is none, or is longer than any cluster.
    """
    names: list[str] = []
    for entry in re.split(r",(?![^\[]*\])", text.strip()):
        names += _expand_brackets(entry.strip(), text)
        if len(names) > _MAX_HOSTS:
            raise UsageError(f"SLURM_JOB_NODELIST={text[:80]!r} names more than {_MAX_HOSTS} hosts")
    return names


def _expand_brackets(entry: str, text: str) -> list[str]:
    match = _BRACKETS.search(entry)
    plain = entry if match is None else entry[: match.start()] + "0"
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", plain):
        raise UsageError(f"SLURM_JOB_NODELIST={text[:80]!r} cannot be read at {entry[:40]!r}")
    if match is None:
        return [entry]
    before, after = entry[: match.start()], entry[match.end() :]
    middles = [number for part in match[1].split(",") for number in _expand_range(part, text)]
    ends = _expand_brackets(f"x{after}", text)  # there may be a second pair of brackets
    if len(middles) * len(ends) > _MAX_HOSTS:
        raise UsageError(f"SLURM_JOB_NODELIST={text[:80]!r} names more than {_MAX_HOSTS} hosts")
    return [f"{before}{middle}{end[1:]}" for middle in middles for end in ends]


def _expand_range(part: str, text: str) -> list[str]:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or last < first or last - first >= _MAX_HOSTS:
        raise UsageError(f"SLURM_JOB_NODELIST={text[:80]!r} cannot be read at {part[:40]!r}")
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
