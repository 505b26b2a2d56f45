"""Run the contract of each framework on the versions of tests/matrix/cells.yaml.

    python tests/matrix/matrix.py                  # all cells but those that run by themselves
    python tests/matrix/matrix.py torch-2.5        # some
    python tests/matrix/matrix.py --turn 4         # those of the fourth run of CI
    python tests/matrix/matrix.py --record docs/data/matrix.json

Each cell has an environment .venv/matrix-NAME, which stays. What it cost is printed behind it:
seconds of the processors to install and to test, and the disk. The exit status is 1 if a cell fails
for which the table gives no reason, or if none was run.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from matrix_cells import ROOT, Cell, Matrix, TableError, load_file
from matrix_environment import LOGS, NOT_INSTALLED, Environment
from matrix_result import Outcome, Result

RECORD = ROOT / "docs" / "data" / "matrix.json"
TURN_S = 180.0


def read(record: Path) -> dict[str, Result]:
    """Return the results of a file, by cell."""
    rows = json.loads(record.read_text()) if record.exists() else []
    return {row["name"]: Result(**row) for row in rows}


def write(record: Path, results: dict[str, Result], matrix: Matrix) -> None:
    """Write results in the order of the table; those of cells that it lacks are dropped."""
    rows = [asdict(results[name]) for name in matrix.cells if name in results]
    record.write_text(json.dumps(rows, indent=1) + "\n")


def keep(record: Path, result: Result, matrix: Matrix) -> None:
    """Put a result into a file, into which another run may put one at the same time."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / "record.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write(record, read(record) | {result.name: result}, matrix)


def run_cell(cell: Cell, matrix: Matrix, place: Path) -> Result:
    """Make the environment of a cell, and run its tests."""
    result = Result(cell.name, date=datetime.date.today().isoformat())
    suites = [matrix.suites[name] for name in cell.suites]
    environment = Environment(cell, suites, place)
    if reason := environment.why_not():
        result.reason = reason
        return result
    with environment.locked():
        if not environment.make(result):
            return result
        for suite in suites:
            environment.test(suite, result)
    if result.outcome != Outcome.PASSED and cell.known:
        result.outcome, result.reason = Outcome.KNOWN, cell.known
    return result


def chosen(options: argparse.Namespace, matrix: Matrix) -> list[Cell]:
    """Return the cells that the command line asks for."""
    if options.cells:
        return matrix.named(options.cells)
    if options.turn is None:
        return matrix.usual()
    costs = {
        name: result.processor_s
        for name, result in read(RECORD).items()
        if result.outcome == Outcome.PASSED
    }
    turns = matrix.turns(costs, TURN_S)
    if options.turn == "all":
        return [cell for turn in turns for cell in turn]
    if not options.turn.isdecimal():
        raise TableError(f"--turn {options.turn}: a number, or all")
    number = int(options.turn) % len(turns)
    print(f"turn {number + 1} of {len(turns)} of the matrix")
    return turns[number]


def main() -> int:
    """Read the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started ends, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--turn", help="the cells of this run of CI: a number, or all")
    parser.add_argument("--record", type=Path, help="put the results into this file")
    parser.add_argument(
        "--place", type=Path, default=Path(sys.prefix), help="where environments go; default: .venv"
    )
    options = parser.parse_args()
    matrix = load_file()
    try:
        cells = chosen(options, matrix)
    except TableError as error:
        parser.error(str(error))
    results = []
    for cell in cells:
        print(f"cell {cell.name} ...", flush=True)
        results.append(run_cell(cell, matrix, options.place))
        print(results[-1], flush=True)
        if options.record:  # now, as the next cell may take long
            keep(options.record, results[-1], matrix)
    # A run of CI does not fail for what an index of packages, or this interpreter, lacks.
    failed = [
        each.name
        for each in results
        if each.outcome == Outcome.FAILED
        and not (options.turn and each.reason.startswith(NOT_INSTALLED))
    ]
    passed = sum(each.outcome == Outcome.PASSED for each in results)
    print(f"{passed} of {len(results)} cells passed", *(f"; FAILED: {each}" for each in failed))
    return 1 if failed or not (passed or options.turn) else 0


if __name__ == "__main__":
    sys.exit(main())
