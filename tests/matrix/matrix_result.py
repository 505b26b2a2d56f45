"""What came of a cell. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class Outcome:
    """How a cell ended."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "fails, for a known reason"
    NOT_RUN = "not run"


@dataclass
class Result:
    """What came of a cell.

    Attributes:
        outcome: see :class:`Outcome`.
        reason: why it did not pass.
        date: of the run.
        python: its version.
        versions: of the packages that the cell shows.
        tests: how many passed, failed and were skipped.
        install_s, test_s: of the clock.
        processor_s: of all processors, both together.
        megabytes: that the environment takes on the disk, apart from what it shares with .venv.
    """

    name: str
    outcome: str = Outcome.NOT_RUN
    reason: str = ""
    date: str = ""
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    tests: dict[str, int] = field(default_factory=dict)
    install_s: int = 0
    test_s: int = 0
    processor_s: int = 0
    megabytes: int = 0

    def add_tests(self, output: str) -> None:
        """Take the closing line of pytest into account."""
        for kind, count in counted(output).items():
            self.tests[kind] = self.tests.get(kind, 0) + count

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        tests = ", ".join(f"{count} {kind}" for kind, count in self.tests.items())
        lines = [
            f"cell {self.name}: {self.outcome}" + (f" ({tests})" if tests else ""),
            f"  Python {self.python}: {versions}" if versions else "",
            f"  {self.install_s} s to install, {self.test_s} s to test, "
            f"{self.processor_s} s of the processors, {self.megabytes} MB",
            f"  {self.reason}" if self.reason else "",
        ]
        return "\n".join(filter(None, lines))


def counted(output: str) -> dict[str, int]:
    """Return how many tests of each kind pytest's closing line counts; empty if there is none."""
    closing = re.findall(r"^=* ?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", output, re.MULTILINE)
    found = re.findall(r"(\d+) (\w+)", closing[-1]) if closing else []
    return {kind: int(count) for count, kind in found if kind not in ("deselected", "warnings")}
