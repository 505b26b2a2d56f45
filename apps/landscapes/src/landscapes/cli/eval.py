"""``landscapes eval``: measures a checkpoint beside its controls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    import argparse

# Of the preset tiny64 after minutes on two cores; other presets have none yet.
TARGETS = {
    "mIoU of the judge on real": (0.75, 1),
    "mIoU of the judge on painted": (0.40, 1),
    "Fréchet distance in judge features": (0.6, -1),
    "class colors nearer to the own reference than to another (2AFC)": (0.70, 1),
    "change inside over change outside, grass to snow": (3.0, 1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--checkpoint", type=Path, help="folder of a run; without it, the shipped model")
    add("--data", type=Path, required=True, help="folder of pairs, with its judge splits")
    add("--report", type=Path, required=True, help="JSON file to write; a page is put beside it")
    add("--pairs", type=int, default=300, help="at most so many of judge-val (%(default)s)")
    steps = "steps of training each of two judges, which DATA/judges keeps (%(default)s)"
    add("--judge-steps", type=int, default=1500, help=steps)
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto is a GPU if there is one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print it. Return 1 if a control was not beaten."""
    import horovod.torch as hvd
    from landscapes.checkpoint import SHIPPED, load_model, write_file
    from landscapes.data.store import describe
    from landscapes.devices import device_named
    from landscapes.judge.evaluate import FEWEST_PAIRS, measure, prepare
    from landscapes.judge.page import render_page

    if arguments.pairs < FEWEST_PAIRS or arguments.judge_steps < 1:
        raise LandscapesError(f"Give --pairs {FEWEST_PAIRS} or more, and --judge-steps 1 or more.")
    model = load_model(arguments.checkpoint or SHIPPED)
    description = describe(arguments.data)
    if description.size != model.preset.size:
        raise LandscapesError(
            f"{arguments.data} has pictures of {description.size} px, and the model paints "
            f"{model.preset.size} px: render pairs of that size."
        )
    hvd.init()
    if hvd.size() > 1:
        raise LandscapesError("eval runs on one process: start it without horovodrun.")
    device = device_named(arguments.device)
    subject = prepare(model, arguments.data, arguments.pairs, arguments.judge_steps, device)
    rows = measure(subject)
    _add_targets(rows, model.preset.name)
    report = {
        "preset": model.preset.name,
        "step": model.config.get("step"),
        "checkpoint": model.digest,
        "data": description.name,
        "pairs": len(subject.labels),
        "judge_steps": arguments.judge_steps,
        "rows": rows,
    }
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_file(arguments.report, text.encode())
    write_file(arguments.report.with_suffix(".html"), render_page(report, subject).encode())
    for row in rows:
        _print(row)
    hvd.shutdown()
    return 0 if all(row["beats_controls"] for row in rows) else 1


def _add_targets(rows: list[dict[str, Any]], preset: str) -> None:
    if preset != "tiny64":
        return
    for row in rows:
        if row["measure"] not in TARGETS:
            continue
        bound, sign = TARGETS[row["measure"]]
        value, text = row["value"], f"at least {bound}"
        if sign < 0:
            value, text = row["for comparison"]["ratio to flat painter"], f"below {bound} x flat"
        row["target"] = f"{text}: {'met' if value * sign >= bound * sign else 'missed'}"


def _print(row: dict[str, Any]) -> None:
    controls = ", ".join(f"{name} {value}" for name, value in row["controls"].items())
    lost = "" if row["beats_controls"] else "  LOSES TO A CONTROL"
    target = f"  ({row['target']})" if "target" in row else ""
    print(f"{row['question']:16} {row['measure']}: {row['value']}{target}  [{controls}]{lost}")
