"""Makes the output of ``horovodrun experiment plan``: what would run on which host."""

from __future__ import annotations

import json
import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment.side_by_side import divided

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.placing.hosts import Host, Slot


# In place of a host, if Ray finds room for the workers.
CLUSTER = "a Ray cluster"


def lanes_of(experiment: Experiment, hosts: Sequence[Host]) -> list[list[Slot]]:
    """Slots for each of the runs that may go on at the same time. Pure.

    Without hosts, which a discovery tells later, there is one lane without slots. Runs that need
    GPUs share no host, since each takes the GPUs of a host from the first one on.

    Raises:
        UsageError: there is no room for one run.
    """
    if not hosts:
        return [[]]
    train = experiment.file.train
    shares = train.resources.gpus == 0 or hosts[0].name == CLUSTER
    at_most = min(train.concurrency, len(experiment.runs))
    return divided(hosts, experiment.size, at_most, shares_hosts=shares)


def plan_text(experiment: Experiment, lanes: Sequence[Sequence[Slot]]) -> str:
    """The file in its canonical spelling, the ranks of each host, the lines of each run."""
    shape = f"{_count(experiment.workers, 'worker')} x {_count(experiment.processes, 'process')}"
    return "\n".join(
        [
            f"# {experiment.path}, in canonical spelling",
            experiment.canonical,
            f"{shape} = {_count(experiment.size, 'rank')}",
            *_elastic(experiment),
            *(line for slots in lanes for line in _hosts(slots)),
            *([] if any(lanes) else ["  on the hosts that discovery lists"]),
            "",
            f"each line runs as: {shlex.join(experiment.shell)} LINE",
            *(f"once on each host: {each}" for each in experiment.install),
            *_runs(experiment.runs, len(lanes)),
        ]
    )


def check_gpus(experiment: Experiment, hosts: Sequence[Host]) -> None:
    """Refuses to start all workers of a large experiment on a machine that nobody named.

    Raises:
        UsageError: they need more GPUs than this machine has, and no host was named.
    """
    need = experiment.workers * experiment.file.train.resources.gpus
    if need == 0 or len(hosts) != 1 or hosts[0].slots is not None or hosts[0].name == CLUSTER:
        return
    have = sum(device.name[6:].isdecimal() for device in Path("/dev").glob("nvidia*"))
    if have < need:
        raise UsageError(
            f"{experiment.path} asks for {_count(experiment.workers, 'worker')} with "
            f"{_count(experiment.file.train.resources.gpus, 'GPU')} each, but this machine has "
            f"{have or 'none'}: name hosts, such as -H host1:4,host2:4, or write gpus: 0"
        )


def _count(number: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def _elastic(experiment: Experiment) -> Iterator[str]:
    if experiment.sizes is not None:
        fewest, most = experiment.sizes
        up_to = "as many as there are slots" if most is None else str(most)
        yield f"  at the beginning; then from {fewest} to {up_to}"


def _hosts(slots: Sequence[Slot]) -> Iterator[str]:
    for name, group in groupby(slots, key=lambda slot: slot.hostname):
        ranks = [slot.rank for slot in group]
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        yield f"  {which} on {name}"


def _runs(runs: Sequence[Run], at_a_time: int) -> Iterator[str]:
    if len(runs) > 1:
        how = "one after the other" if at_a_time == 1 else f"{at_a_time} at a time"
        yield f"{len(runs)} runs, {how}"
    for number, run in enumerate(runs, 1):
        if run.parameters:
            yield f"run {number}: {described(run.parameters)}"
        for index, line in enumerate(run.lines, 1):
            yield f"  line {index}: {line}"


def described(parameters: Mapping[str, str]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{shown(name)}={shown(value)}" for name, value in parameters.items())


def shown(text: str) -> str:
    """Return a text for a line of a table, in quotes if it has characters that would not show."""
    is_plain = text.isprintable() and text == text.strip() and text and ", " not in text
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
