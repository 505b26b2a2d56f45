"""Shows a monitor's data as a table, as JSON lines, or to Prometheus."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.monitor import COLUMNS, Monitor, RankView, rows_of, slowest
from horovod.runner.experiment.trusted import read_trusted
from horovod.runner.observation.metrics_server import MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TextIO

TOKEN = "monitor.token"
_TOKEN_BYTES = 32
_INTERVAL_S = 3.0
_NOBODY = "no rank runs now"


def monitor(root: Path, words: Sequence[str], stdout: TextIO) -> int:
    """Shows the ranks of an experiment until it has ended, or Ctrl-C.

    Args:
        root: the folder of all experiments of the project.
        words: options, and maybe the number of the experiment; otherwise it is the last one.
        stdout: where the table, or the JSON lines, go.

    Returns:
        The exit code.

    Raises:
        UsageError: there is no such experiment, or the port cannot be used.
    """
    options = _parser().parse_args(list(words))
    number = options.id if options.id is not None else record.last_in(root)
    known = record.read(root / str(number))
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        show = _shown_by(known, options, stdout, stack)
        while True:
            is_running = known.is_running()
            show()
            if options.once or not is_running:
                break
            time.sleep(options.interval)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("horovodrun experiment monitor", allow_abbrev=False)
    add = parser.add_argument
    add("id", nargs="?", type=int, help="number of the experiment; the last one if it is left out")
    add("--json", action="store_true", help="print a line of JSON instead of the table")
    add("--once", action="store_true", help="look once")
    add("--interval", type=_seconds, default=_INTERVAL_S, help="seconds between refreshes")
    add("--prometheus", type=_port, metavar="PORT", help="serve it on this port of 127.0.0.1")
    return parser


def _port(text: str) -> int:
    if not 0 <= (port := int(text)) < 1 << 16:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return port


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.1 to 3600 seconds")
    return value


def _shown_by(
    known: record.Record, options: argparse.Namespace, stdout: TextIO, stack: ExitStack
) -> Callable[[], object]:
    source = Monitor(known)
    if options.prometheus is not None:
        return _serve(known, source, options.prometheus, stdout)
    if options.json:
        return lambda: _print_json(known.number, source.look(), stdout)
    if not stdout.isatty():
        return lambda: _print_plain(source, stdout)
    try:
        from rich.live import Live
    except ImportError:
        return lambda: _print_plain(source, stdout)
    live = stack.enter_context(Live(auto_refresh=False))
    return lambda: live.update(_table(source), refresh=True)


def _table(source: Monitor) -> Any:
    from rich.markup import escape
    from rich.table import Table

    views = source.look()
    table = Table(title=source.title(), caption=slowest(views) or None, expand=True)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, ratio=1 if column == "said" else None)
    for row in rows_of(views):
        table.add_row(*map(escape, row))
    if not views:
        table.caption = _NOBODY
    return table


def _print_plain(source: Monitor, stdout: TextIO) -> None:
    views = source.look()
    lines = [source.title()]
    lines += record.aligned([COLUMNS, *rows_of(views)]) if views else [_NOBODY]
    print("\n".join([*lines, *filter(None, [slowest(views)])]), file=stdout, flush=True)


def _print_json(number: int, views: list[RankView], stdout: TextIO) -> None:
    data = {
        "time": round(time.time(), 3),
        "experiment": number,
        "ranks": [asdict(view) for view in views],
        "slowest": slowest(views),
    }
    print(json.dumps(data), file=stdout, flush=True)


# -- Prometheus

_METRICS: tuple[tuple[str, str, Callable[[RankView], float | None]], ...] = (
    ("horovod_rank_running", "1 while a rank executes its line", lambda v: v.state == "running"),
    ("horovod_rank_line", "the line that it executes, from 1", lambda v: v.line),
    ("horovod_rank_seconds", "since the line began", lambda v: v.seconds),
    ("horovod_rank_collectives_per_second", "as last reported", lambda v: v.collectives),
    ("horovod_rank_waiting_ratio", "share of time that it waits for others", lambda v: v.waiting),
    ("horovod_rank_memory_bytes", "resident memory of its processes", lambda v: v.memory),
)


def exposition(number: int, views: Sequence[RankView]) -> str:
    """The text format of Prometheus, version 0.0.4. Pure.

    Args:
        number: of the experiment.
        views: of its ranks.
    """
    lines = []
    for name, what, value_of in _METRICS:
        lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"]
        for view in views:
            value = value_of(view)
            if value is not None:
                host = view.host.replace("\\", "\\\\").replace('"', '\\"')
                labels = f'experiment="{number}",run="{view.run}",rank="{view.rank}",host="{host}"'
                lines.append(f"{name}{{{labels}}} {float(value):g}")
    return "\n".join(lines) + "\n"


def _serve(
    known: record.Record, source: Monitor, port: int, stdout: TextIO
) -> Callable[[], object]:
    """Serve on a thread; clients need the token, which is in a private file."""
    latest = [exposition(known.number, source.look())]
    server = MetricsServer(port, token_in(known.folder), lambda: latest[0])

    def look() -> None:
        latest[0] = exposition(known.number, source.look())

    where = f"http://127.0.0.1:{server.port}/metrics"
    path = known.folder / TOKEN
    print(
        f"{where}, for clients that send 'Authorization: Bearer' and {path}",
        file=stdout,
        flush=True,
    )
    return look


def token_in(folder: Path) -> str:
    """Return the token of an experiment; create it at first, readable by its owner only.

    Raises:
        UsageError: it cannot be written, was damaged, or somebody else could have put it there.
    """
    path = folder / TOKEN
    try:
        with suppress(FileExistsError), open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        token = read_trusted(path, files.ANY_ACCESS)
    except OSError as error:
        raise record.unwritable(path, error) from None
    except UnicodeDecodeError:
        token = ""
    if len(token) != 2 * _TOKEN_BYTES:  # an empty one would let anybody in
        raise UsageError(f"{path} has no token: remove it, and a new one is made")
    return token


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
