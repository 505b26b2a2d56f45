"""Runs ``train.install`` once on each host, before the lines of any run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.experiment import record
from horovod.runner.experiment.grid import Line
from horovod.runner.experiment.lines import add
from horovod.runner.placing.hosts import Host, assign

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horovod.runner.experiment.lines import Means
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.placing.hosts import Slot

FOLDER = "install"


def install(commands: Sequence[str], lanes: Sequence[Lane], folder: Path, means: Means) -> int:
    """Runs the commands in one shell of each host, and waits for all hosts.

    Args:
        commands: one after the other; the first that fails is the last.
        lanes: where runs will be executed.
        folder: of the experiment.
        means: with what lines are executed.

    Returns:
        0, or the exit code of the host that failed first.

    Raises:
        UsageError: the output cannot be written.
    """
    slots = _one_of_each_host(lanes)
    line = install_line(commands, means.shell)
    options = replace(lanes[0].options, output_filename=str(folder / record.LOGS / FOLDER))
    settings = replace(means.settings, command=line.command)
    add(folder, "install-started", hosts=list(dict.fromkeys(slot.hostname for slot in slots)))
    code = means.finish(means.launch(line, slots, settings, options, lambda _: nullcontext()))
    add(folder, "install-ended", exit_code=code)
    return code


def install_line(commands: Sequence[str], shell: Sequence[str]) -> Line:
    """What one process of each host runs; the first command that fails is the last in any shell."""
    return Line("\n".join(["set -e", *commands]), "host", shell=tuple(shell))


def _one_of_each_host(lanes: Sequence[Lane]) -> Sequence[Slot]:
    """All slots of the first lane, if it has some of each host; or one of each host."""
    users = {slot.hostname: slot.user for lane in lanes for slot in lane.slots}
    if {slot.hostname for slot in lanes[0].slots} == users.keys():
        return lanes[0].slots
    return assign([Host(name, 1, user) for name, user in users.items()], len(users))
