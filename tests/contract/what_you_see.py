"""The table of docs/failures.md, row by row, for ranks of any framework.

A rank is ``table_rank.py FRAMEWORK WHAT``. Some rows share a job, which goes on after them.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RANK = Path(__file__).with_name("table_rank.py")
PAGE = RANK.parents[2] / "docs" / "failures.md"
VARIABLES = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0",
    "HOROVOD_DEADLOCK_TIMEOUT": "3",
    "HOROVOD_START_TIMEOUT": "90",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass(frozen=True)
class Seen:
    """What a job of two ranks said.

    Attributes:
        framework: of its ranks.
        stdout, stderr: of its launcher.
    """

    framework: str
    stdout: str
    stderr: str

    def error(self, rank: int, row: str) -> tuple[float, list[str], str]:
        """After how long which classes of errors said what."""
        pattern = rf"(?m)^\[{rank}\]<stdout>:{row} after ([\d.]+) s: ([\w ]+): (.*)$"
        found = re.search(pattern, self.stdout)
        assert found, f"{row} on rank {rank}:\n{self.stdout}\n{self.stderr}"
        return float(found[1]), found[2].split(), found[3]

    def expect(self, rank: int, row: str, kind: str, *patterns: str, within_s: float) -> None:
        """An operation's error of TensorFlow, JAX and MXNet is of a class of the framework's."""
        after_s, kinds, text = self.error(rank, row)
        assert after_s < within_s, text
        if self.framework == "torch" or kind == "UsageError":
            assert kind in kinds, (kinds, text)
        for pattern in patterns:
            assert re.search(pattern, text), f"{pattern} is not in: {text}"

    def expect_stderr(self, *patterns: str) -> None:
        for pattern in patterns:
            assert re.search(pattern, self.stderr), f"{pattern} is not in:\n{self.stderr}"


def killed(seen: Seen) -> None:
    lost = r"rank 1 \(\S+:\d+\) was lost"
    seen.expect(0, "killed", "PeerLostError", lost, within_s=10.0)
    seen.expect_stderr(r"rank 1 on localhost was killed by SIGKILL")


def raised(seen: Seen) -> None:
    what = r"rank 1 \(\S+:\d+\).* raised RuntimeError at \S+table_rank\.py:\d+: planted"
    seen.expect(0, "raised", "ShutDownError", what, within_s=10.0)
    seen.expect_stderr(r"rank 1 on localhost .*(RuntimeError|code 1)")


def crossed(seen: Seen) -> None:
    site = r" at \S+table_rank\.py:\d+"
    waits = (
        r"rank 0 \(\S+\): \[\S*other\]",
        r"It waits for \S*(train|kernel)",
        r"It waits for \S*other",
    )
    both = ("Ranks wait for each other", *waits, site, "HOROVOD_DEADLOCK_TIMEOUT")
    for rank in range(2):
        seen.expect(rank, "crossed", "StalledError", *both, within_s=60.0)
    warned = re.search(
        r"\[([\d-]+ [\d:]+) horovod warning\] Ranks wait for each other", seen.stderr
    )
    assert warned, seen.stderr
    begun = [float(each) for each in re.findall(r"crossing at ([\d.]+)", seen.stdout)]
    # The time of a warning has no fractions. TensorFlow first makes a graph, Keras a model, and
    # JAX compiles a program.
    first = datetime.datetime.fromisoformat(warned[1]).timestamp()
    prepares = seen.framework in ("tensorflow", "keras", "jax")
    assert first - max(begun) < (30.0 if prepares else 3.0)
    seen.expect_stderr(*waits, site)


def late(seen: Seen) -> None:
    seen.expect_stderr(
        r"Operations have waited for up to \d s, because one or more ranks have not submitted them",
        r"\S*late: submitted by rank 0 \(\S+\) at \S+table_rank\.py:\d+",
        r"rank 1 \(\S+\): \[\S*late\]",
        r"It (is busy|sleeps) \(\d+ % of a core\)",
        r"table_rank\.py:\d+ in come_late",
    )


def drifted(seen: Seen) -> None:
    for rank in range(2):
        _, kinds, text = seen.error(rank, "drift")
        assert "ReplicasDivergedError" in kinds, (kinds, text)
        assert re.search(r"1 tensors are not the same .*rank", text), text


def wrong(seen: Seen) -> None:
    _, kinds, text = seen.error(1, "wrong")
    assert "ValueError" in kinds, (kinds, text)
    assert "99" in text, text
    assert "[0]<stdout>:wrong" not in seen.stdout


def no_start(seen: Seen) -> None:
    _, kinds, text = seen.error(0, "no start")
    assert "StartError" in kinds, (kinds, text)
    assert re.search(r"1 rank of 2 never appeared within 2 s: 1 \(localhost\)", text), text


JOBS: dict[str, dict[str, Callable[[Seen], None]]] = {
    "play on": {
        "The call itself is wrong": wrong,
        "Replicas drift apart": drifted,
        "A rank does not submit an operation, or stops in the middle of one": late,
        "Ranks wait for each other, because one took another branch": crossed,
        "A rank was killed": killed,
    },
    "raise": {"A rank raised an exception": raised},
    "no start": {"The job cannot start": no_start},
}
"""By what ranks are told to do: the rows, as the page has them, and what is to be seen of each."""


def rows_of_page() -> list[str]:
    """The first column of the table."""
    table = PAGE.read_text().split("| What happened | What you see |\n", 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[1:]]


def check(framework: str, job: str, stdout: str, stderr: str) -> None:
    """Looks at all rows that a job shows."""
    for look in JOBS[job].values():
        look(Seen(framework, stdout, stderr))
