"""The stream in a terminal: a table that is drawn again, or plain text, or JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horovod.runner.observation.records import JobView, RankView

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from horovod.runner.observation.client import StreamClient

COLUMNS = ("rank", "host", "state", "work", "input", "wait", "network", "step", "memory", "said")
_MOST_ROWS = 40
_NUM_EVENTS = 3


def watch(client: StreamClient, stdout: TextIO, *, once: bool, as_json: bool) -> None:
    """Show views until the job ends.

    Args:
        client: connected to the job.
        stdout: where they go.
        once: end after the first view in which all ranks have reported.
        as_json: print each view as a line of JSON.
    """
    for message in _views(client):
        view = JobView.from_data(message)
        if once and view.verdicts[0].kind == "unknown" and not view.ended:
            continue
        if as_json:
            print(json.dumps(message), file=stdout, flush=True)
        elif stdout.isatty() and not once:
            _draw_until_end(view, client, stdout)
            return
        else:
            print("\n".join(lines_of(view)), file=stdout, flush=True)
        if once:
            return


def _views(client: StreamClient) -> Iterator[dict[str, Any]]:
    for message in client.messages():
        if message.pop("type") == "view":
            yield message


def _draw_until_end(view: JobView, client: StreamClient, stdout: TextIO) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        print("\n".join(lines_of(view)), file=stdout, flush=True)
        for message in _views(client):
            print("\n".join(["", *lines_of(JobView.from_data(message))]), file=stdout, flush=True)
        return
    with Live(console=Console(file=stdout), auto_refresh=False) as live:
        live.update(Text("\n".join(lines_of(view))), refresh=True)
        for message in _views(client):
            lines = lines_of(JobView.from_data(message))
            live.update(Text("\n".join(lines)), refresh=True)


def lines_of(view: JobView) -> list[str]:
    """Return a view as text: verdicts, ranks, events. Pure."""
    lines = [f"job {view.job}: {len(view.ranks)} ranks run {view.command}"]
    if view.generation:
        lines[0] += f" (generation {view.generation})"
    for verdict in view.verdicts:
        lines.append(f"> {verdict.text}")
        lines += [f"  what to do: {verdict.advice}"] if verdict.advice else []
    rows = [row_of(rank) for rank in _worst_first(view)]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows):
        lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
    hidden = len(view.ranks) - len(rows)
    lines += [f"and {hidden} more ranks"] if hidden else []
    if view.logged:
        values = ", ".join(f"{name} {value:.4g}" for name, value in view.logged.items())
        lines.append(f"step {view.logged_step}: {values}")
    heads = [event.text.partition("\n")[0] for event in view.events[-_NUM_EVENTS:]]
    lines += [f"! {head}" for head in heads]
    return [*lines, f"ended: {view.ended}"] if view.ended else lines


def _worst_first(view: JobView) -> list[RankView]:
    """All ranks in their order, or of many those that wait least and what does not run."""
    if len(view.ranks) <= _MOST_ROWS:
        return list(view.ranks)
    return sorted(view.ranks, key=lambda rank: (rank.state == "running", rank.wait))[:_MOST_ROWS]


def row_of(rank: RankView) -> tuple[str, ...]:
    """Return the columns of a rank. Pure."""
    if not rank.length_s:
        return (str(rank.rank), rank.host, rank.state, *[""] * 6, rank.said)
    work = rank.backward + rank.optimizer + rank.compute
    shares = (f"{100 * share:.0f} %" for share in (work, rank.input, rank.wait, rank.network))
    step = f"{1000 * rank.step_s:.0f} ms" if rank.step_s else ""
    memory = f"{rank.memory_bytes / 2**20:.0f} MiB"
    if rank.gpu_total_bytes:
        memory += f", GPU {100 * rank.gpu_busy:.0f} % {rank.gpu_memory_bytes / 2**20:.0f} MiB"
    return (str(rank.rank), rank.host, rank.state, *shares, step, memory, rank.said[:60])
