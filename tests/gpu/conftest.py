"""Tests on a real GPU: `make test-gpu`. Without one they end at once, and say so.

``build/gpu-report.md`` has for each test whether it passed, failed or was not run, and on what.
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import horovod

_TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(_TESTS / "contract"), str(_TESTS / "jax"), str(Path(__file__).resolve().parent)]
REPORT = _TESTS.parent / "build" / "gpu-report.md"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip or "the CPU only"
        pytest.exit(
            "tests/gpu needs a GPU and a PyTorch that can use it: torch.cuda.is_available() is "
            f"False here, PyTorch {torch.__version__} is built for {built}",
            returncode=5,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report, also after an interruption: what has no result was not run."""
    if not torch.cuda.is_available():
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    results: dict[str, str] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            results[report.nodeid] = _result(outcome, report)
    lines = [*_machine(), "", "| Test | Result |", "|---|---|"]
    for item in session.items:
        name = item.nodeid.partition("::")[2]
        lines.append(f"| {name} | {results.get(item.nodeid, 'not run')} |")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the report is."""
    terminalreporter.write_line(f"report: {REPORT}")


def _result(outcome: str, report: pytest.TestReport) -> str:
    if outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return f"not run: {reason.removeprefix('Skipped: ')}"
    return f"passed in {report.duration:.0f} s" if outcome == "passed" else "**failed**"


def _machine() -> list[str]:
    """Return lines that say what the tests ran on."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        driver = found.stdout.split()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        driver = "unknown"
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    nccl = ".".join(map(str, version)) if torch.version.cuda else "RCCL"
    return [
        f"- Horovod {horovod.__version__}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        f"- {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, driver {driver}",
        f"- PyTorch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}, "
        f"NCCL {nccl}, Python {platform.python_version()}",
    ]
