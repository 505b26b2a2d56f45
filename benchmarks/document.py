"""Write tables of docs/benchmarks.md from the reports in docs/data, which benchmarks wrote.

    python benchmarks/document.py docs/benchmarks.md
    python benchmarks/document.py --check docs/benchmarks.md

To replace a report, run the benchmark with ``--json docs/data/NAME.json``.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import allreduce
import elastic_soak
import simulate
import training_step
import versions

from horovod._settings.document import run

DATA = Path(__file__).resolve().parents[1] / "docs" / "data"


def load(name: str) -> Any:
    """Return a report."""
    return json.loads((DATA / f"{name}.json").read_text())


def scaling_table(report: str) -> str:
    """Return the table that simulate.py prints of a report."""
    steps = [simulate.Step(**step) for step in load(report)]
    printed = io.StringIO()
    with redirect_stdout(printed):
        simulate.print_table(steps, sorted({step.ranks for step in steps}))
    return f"```\n{printed.getvalue()}```"


def tables() -> dict[str, list[str]]:
    """Return the lines between the markers of each table."""
    texts = {
        f"allreduce {each['np']}": allreduce.show_run(each) for each in load("allreduce")["runs"]
    }
    texts["training step"] = training_step.show_table(load("training_step")["runs"][0])
    texts["scaling"] = scaling_table("scaling")
    texts["scaling int8"] = scaling_table("scaling_int8")
    report = elastic_soak.from_json((DATA / "elastic_soak.json").read_text())
    texts["elastic soak"] = f"{elastic_soak.summary(report)}\n\n{elastic_soak.table(report)}"
    texts["data plane"] = versions.show_report(load("data_plane"))
    texts["data plane epyc"] = versions.show_report(load("data_plane_epyc"))
    return {name: text.splitlines() for name, text in texts.items()}


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "benchmarks/document.py", tables()))
