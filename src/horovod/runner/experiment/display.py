"""How a monitor shows what it sees: as a table, as JSON lines, or to Prometheus."""

from __future__ import annotations

import argparse
import hmac
import json
import os
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.monitor import COLUMNS, Monitor, RankView, rows_of, slowest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TextIO

TOKEN = "monitor.token"
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
    add("--interval", type=_seconds, default=_INTERVAL_S, help="seconds between two looks")
    add("--prometheus", type=int, metavar="PORT", help="serve it on this port of 127.0.0.1")
    return parser


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
        return lambda: _print_json(known, source.look(), stdout)
    if not stdout.isatty():
        return lambda: _print_plain(known, source.look(), stdout)
    try:
        from rich.live import Live
    except ImportError:
        return lambda: _print_plain(known, source.look(), stdout)
    live = stack.enter_context(Live(auto_refresh=False))
    return lambda: live.update(_table(known, source.look()), refresh=True)


def _title(known: record.Record) -> str:
    states = [each.state for each in known.run_records(is_running=True)]
    done = sum(each in ("finished", "failed", "killed") for each in states)
    return f"experiment {known.number}: {done} of {len(states)} run(s) done"


def _table(known: record.Record, views: list[RankView]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=_title(known), caption=slowest(views) or None, expand=True)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, ratio=1 if column == "said" else None)
    for row in rows_of(views):
        table.add_row(*map(escape, row))
    if not views:
        table.caption = _NOBODY
    return table


def _print_plain(known: record.Record, views: list[RankView], stdout: TextIO) -> None:
    lines = [_title(known)]
    lines += record.aligned([COLUMNS, *rows_of(views)]) if views else [_NOBODY]
    print("\n".join([*lines, *filter(None, [slowest(views)])]), file=stdout, flush=True)


def _print_json(known: record.Record, views: list[RankView], stdout: TextIO) -> None:
    data = {
        "time": round(time.time(), 3),
        "experiment": known.number,
        "ranks": [asdict(each) for each in views],
        "slowest": slowest(views),
    }
    print(json.dumps(data), file=stdout, flush=True)


# -- Prometheus

_METRICS: tuple[tuple[str, str, Callable[[RankView], float | None]], ...] = (
    ("horovod_rank_running", "1 while a rank executes its line", lambda v: v.state == "running"),
    ("horovod_rank_line", "the line that it executes, from 1", lambda v: v.line),
    ("horovod_rank_seconds", "since the line began", lambda v: v.seconds),
    ("horovod_rank_collectives_per_second", "as it has told last", lambda v: v.collectives),
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
        for each in views:
            value = value_of(each)
            if value is not None:
                host = each.host.replace("\\", "\\\\").replace('"', '\\"')
                labels = f'experiment="{number}",run="{each.run}",rank="{each.rank}",host="{host}"'
                lines.append(f"{name}{{{labels}}} {float(value):g}")
    return "\n".join(lines) + "\n"


def _serve(
    known: record.Record, source: Monitor, port: int, stdout: TextIO
) -> Callable[[], object]:
    """Serves on a thread; whoever asks has to know the token, which is in a private file."""
    token = _token_in(known.folder)
    latest = [""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                self.send_error(401)
                return
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = latest[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    def look() -> None:
        latest[0] = exposition(known.number, source.look())

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"--prometheus {port}: {error.strerror}") from None
    look()
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="horovod-metrics", daemon=True).start()
    where = f"http://127.0.0.1:{server.server_address[1]}/metrics"
    path = known.folder / TOKEN
    print(f"{where}, for who sends 'Authorization: Bearer' and {path}", file=stdout, flush=True)
    return look


def _token_in(folder: Path) -> str:
    """Of an experiment; made at first, and readable for its owner only."""
    path = folder / TOKEN
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise record.unwritable(path, error) from None
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path.read_text(encoding="ascii")
