"""What the doctor sees in a shell script: variables that it sets, and flags of horovodrun. Pure.

The script is read, never executed; what only a run could determine is left alone.
"""

from __future__ import annotations

import difflib
import re
import shlex
from typing import TYPE_CHECKING

from horovod.runner.doctor.examination import remark_on_setting
from horovod.runner.doctor.interface_028 import fate_of_flag
from horovod.runner.doctor.rules import Level, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENDINGS = (".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".lsf", ".pbs")

_ASSIGNMENT = re.compile(r"(_?HOROVOD_[A-Z0-9_]+)=(.*)", re.DOTALL)
_LAUNCHERS = ("horovodrun", "horovod.runner.launch")


def is_shell_script(path: str, text: str) -> bool:
    """Whether a file is a script of a shell, by its name or its first line."""
    first = text.partition("\n")[0]
    return path.endswith(ENDINGS) or bool(re.match(r"#!.*\b(?:ba|z|da|k)?sh\b", first))


def examine_shell(text: str, path: str, num_words: Mapping[str, int]) -> list[Remark]:
    """Return remarks on variables and flags in a shell script, in line order.

    Args:
        text: the script.
        path: its name, for messages.
        num_words: by option of horovodrun, how many words follow it.
    """
    remarks: list[Remark] = []
    for line, words in _commands(text):
        place = f"{path}:{line}"
        found = [
            *(_on_assignment(place, word) for word in words),
            *_on_flags(place, words, num_words),
        ]
        remarks += [each for each in found if each is not None and each not in remarks]
    return remarks


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line, with what continues it."""
    begun, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if joined else number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        try:
            words = shlex.split(joined, comments=True)
        except ValueError:  # an open quote: a text of several lines, which is no command
            words = []
        joined = ""
        yield begun, words


def _on_assignment(place: str, word: str) -> Remark | None:
    match = _ASSIGNMENT.fullmatch(word.rstrip(";"))
    if match is None:
        return None
    value = None if re.search(r"[$`]", match[2]) else match[2]
    return remark_on_setting(place, match[1], value)


def _on_flags(place: str, words: Sequence[str], num_words: Mapping[str, int]) -> Iterator[Remark]:
    starts = [at for at, word in enumerate(words) if word.rsplit("/", 1)[-1] in _LAUNCHERS]
    rest = list(words[starts[0] + 1 :]) if starts else []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        flag, equals, _ = rest.pop(0).partition("=")
        if flag not in num_words:
            near = difflib.get_close_matches(flag, num_words, n=1, cutoff=0.75)
            hint = f": did you mean {near[0]}?" if near else ""
            yield Remark(place, Level.FAILS, f"horovodrun has no flag {flag}{hint}")
            return  # how many words belong to it is unknown
        rule = fate_of_flag(flag)
        if rule.level is not Level.HONORED:
            yield Remark(place, rule.level, f"{flag}: {rule.text}")
        del rest[: 0 if equals else max(0, num_words[flag])]
