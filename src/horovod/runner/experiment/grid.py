"""The runs of a job file: each combination of its parameters, as RiseML counts them. Pure."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from math import prod
from typing import TYPE_CHECKING

from horovod.runner.experiment.placeholders import fill_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.experiment.schema import Range

MOST_RUNS = 10_000
MOST_DIGITS = 20
# As the shells of CI systems run a line: it ends at its first command that fails, also in a pipe.
SHELL = ("bash", "-e", "-o", "pipefail", "-c")

# Who does not execute a line. A step of srun has other variables than a rank of horovodrun.
_SKIPS = {
    "host": '[ "${HOROVOD_LOCAL_RANK:-$SLURM_LOCALID}" != 0 ]',
    "rank0": '[ "${HOROVOD_RANK:-$SLURM_PROCID}" != 0 ]',
}
# Out of those that the host may use: for each process as many as it has.
_OWN_GPUS = """\
hvd_first=$((${{HOROVOD_LOCAL_RANK:-${{HOROVOD_WORKER_SLOT:-$SLURM_LOCALID}}}} * {gpus} + 1))
CUDA_VISIBLE_DEVICES=$(echo "${{CUDA_VISIBLE_DEVICES:-$(seq -s, 0 127)}}" |
  cut -d, -f$hvd_first-$((hvd_first + {gpus} - 1)))
export CUDA_VISIBLE_DEVICES
"""


@dataclass(frozen=True)
class Line:
    """One command line of a run, and the processes that execute it.

    Attributes:
        text: for a shell.
        on: all of them, or one of each host, or rank0; the others wait for its end.
        gpus: how many GPUs of its host each process sees, beside those of the others; 0 for all,
            of which ``hvd.local_rank()`` chooses one.
        shell: the words in front of the text.
    """

    text: str
    on: str = "all"
    gpus: int = 0
    shell: tuple[str, ...] = SHELL

    @property
    def command(self) -> tuple[str, ...]:
        """Command of each process; any sh can run what precedes the line itself."""
        if self.on == "all" and not self.gpus:
            return *self.shell, self.text
        own_gpus = _OWN_GPUS.format(gpus=self.gpus) if self.gpus else ""
        skips = "" if self.on == "all" else f"{_SKIPS[self.on]} || "
        return "sh", "-c", f"{own_gpus}{skips}exec {shlex.join([*self.shell, self.text])}"

    def __str__(self) -> str:
        """The line, for the user."""
        return self.text if self.on == "all" else f"{self.text} (on {self.on})"


@dataclass(frozen=True)
class Run:
    """One combination.

    Attributes:
        parameters: their values, as they are written.
        lines: what each process runs, one after the other.
    """

    parameters: Mapping[str, str]
    lines: tuple[Line, ...]

    @property
    def variables(self) -> dict[str, str]:
        """The parameters as the environment has them: ``lr-decay`` is LR_DECAY."""
        return {variable_of(name): value for name, value in self.parameters.items()}


def variable_of(name: str) -> str:
    """The name of the variable that holds a parameter."""
    return name.upper().replace("-", "_")


def range_values(given: Range) -> list[str]:
    """The values from the least to the greatest, which belongs to them if a step leads there.

    Raises:
        ValueError: a bound is no number, or the step leads nowhere, or there are too many values.
    """
    try:
        low, high, step = (Decimal(each) for each in (given.min, given.max, given.step))
    except InvalidOperation:
        raise ValueError(
            f"min, max and step must be numbers, not {given.min}, {given.max} and {given.step}"
        ) from None
    if any(map(_is_long, (low, high, step))):
        raise ValueError(f"min, max and step must have at most {MOST_DIGITS} digits")
    if not all(each.is_finite() for each in (low, high, step)) or step <= 0 or high < low:
        raise ValueError(f"steps of {given.step} do not lead from {given.min} to {given.max}")
    if (high - low) / step >= MOST_RUNS:
        raise ValueError(f"there would be more than {MOST_RUNS} values")
    return [f"{low + step * index:f}" for index in range(int((high - low) / step) + 1)]


def _is_long(number: Decimal) -> bool:
    digits = len(number.as_tuple().digits)
    return bool(number.is_finite() and number and max(abs(number.adjusted()), digits) > MOST_DIGITS)


def runs_of(values: Mapping[str, Sequence[str]], lines: Sequence[Line]) -> list[Run]:
    """All combinations: names in the order of the alphabet, the last one varies fastest.

    Raises:
        ValueError: there are too many.
    """
    names = sorted(values)
    if prod(len(values[name]) for name in names) > MOST_RUNS:
        raise ValueError(f"there would be more than {MOST_RUNS} runs")
    found = []
    for combination in itertools.product(*(values[name] for name in names)):
        parameters = dict(zip(names, combination, strict=True))
        found.append(filled(parameters, lines))
    return found


def filled(parameters: Mapping[str, str], lines: Sequence[Line]) -> Run:
    """The run that has these values of the parameters."""
    return Run(
        parameters, tuple(replace(line, text=fill_line(line.text, parameters)) for line in lines)
    )
