"""Runs ``train.install`` once on each host, before the lines of any run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.experiment import record
from horovod.runner.experiment.grid import Line
from horovod.runner.experiment.lines import add
from horovod.runner.placing.hosts import Host, assign
from horovod.runner.starting.requests import FixedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horovod.runner.experiment.lines import RunContext
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.placing.hosts import Slot

FOLDER = "install"


def install(
    commands: Sequence[str], lanes: Sequence[Lane], folder: Path, context: RunContext
) -> int:
    """Runs the commands in one shell of each host, and waits for all hosts.

    Args:
        commands: one after the other; the first that fails is the last.
        lanes: where runs will be executed.
        folder: of the experiment.
        context: what lines share.

    Returns:
        0, or the exit code of the host that failed first.

    Raises:
        UsageError: the output cannot be written.
    """
    slots = _one_of_each_host(lanes)
    line = install_line(commands, context.shell)
    options = replace(context.options, output_filename=str(folder / record.LOGS / FOLDER))
    settings = replace(context.settings, command=line.command)
    request = FixedRequest(settings, options, slots)
    add(folder, "install-started", hosts=list(dict.fromkeys(slot.hostname for slot in slots)))
    code = context.finish(context.launch(line, request, lanes[0].caller))
    add(folder, "install-ended", exit_code=code)
    return code


def install_line(commands: Sequence[str], shell: Sequence[str]) -> Line:
    """Return the installation line for one process of each host; it ends at the first failure."""
    return Line("\n".join(["set -e", *commands]), "host", shell=tuple(shell))


def _one_of_each_host(lanes: Sequence[Lane]) -> Sequence[Slot]:
    """All slots of the first lane, if it has some of each host; or one of each host."""
    users = {slot.hostname: slot.user for lane in lanes for slot in lane.slots}
    if {slot.hostname for slot in lanes[0].slots} == users.keys():
        return lanes[0].slots
    return assign([Host(name, 1, user) for name, user in users.items()], len(users))
