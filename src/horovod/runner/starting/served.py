"""Serves the stream of a job to those who watch: page, terminal, and what collects metrics."""

from __future__ import annotations

import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import python_command
from horovod._job.python_path import with_horovod_on_path
from horovod._settings import exports
from horovod._settings.config import Config, inherited_environment
from horovod.runner.observation.stream import JobStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horovod.runner.observation.records import JobView
    from horovod.runner.observation.watched import WatchedJob
    from horovod.runner.starting.requests import Watching

    Say = Callable[[str], object]
    Watcher = Callable[[JobView], object]

VARIABLES = "HOROVOD_DASHBOARD", "HOROVOD_METRICS_PORT", "HOROVOD_WATCH"
_END_S = 5.0


def with_variables(watching: Watching, environ: Mapping[str, str]) -> Watching:
    """Return options, completed by the variables of the environment; options are stronger.

    Raises:
        StartError: a variable makes no sense; the message names it.
    """
    config = Config.from_env({name: environ[name] for name in VARIABLES if name in environ})
    return replace(
        watching,
        verdicts=watching.verdicts or config.watch,
        dashboard=config.page_port if watching.dashboard is None else watching.dashboard,
        metrics=config.metrics_port if watching.metrics is None else watching.metrics,
    )


@contextmanager
def served(
    job: WatchedJob,
    command: Sequence[str],
    watching: Watching,
    say: Say,
    *,
    pid: int | None = None,
    elsewhere: str = "",
) -> Iterator[JobStream]:
    """Serve the stream of a job inside of the block, in the ways that the user asked for.

    Args:
        job: with its store.
        command: what the ranks run.
        watching: the ways.
        say: takes a line for the user; one of them may have the token of the page.
        pid: of the process by which users name the job; None for this one.
        elsewhere: where the output of a rank is that the stream does not get.

    Raises:
        UsageError: the port for metrics cannot be used, or the token for them.
    """
    environ = inherited_environment()
    with ExitStack() as stack:
        watchers: list[Watcher] = []
        if watching.verdicts:
            watchers.append(_verdicts(say, stack))
        if watching.metrics is not None:
            watchers.append(_metrics(watching.metrics, say, stack))
        watchers += _exports(environ, say, stack)
        stream = JobStream(job, command, watchers, pid=pid, elsewhere=elsewhere)
        with stream.using():
            if watching.dashboard is not None:
                stack.enter_context(_page(stream.key, watching.dashboard, say))
            yield stream


def _verdicts(say: Say, stack: ExitStack) -> Watcher:
    from horovod.runner.observation.verdict_lines import VerdictLines

    lines = VerdictLines(say)
    stack.callback(lines.sum_up)
    return lines.take


def _metrics(port: int, say: Say, stack: ExitStack) -> Watcher:
    from horovod.runner.observation.metrics_server import MetricsServer
    from horovod.runner.observation.prometheus import exposition
    from horovod.runner.observation.token_file import token_path, user_token

    latest = [""]
    server = MetricsServer(port, user_token(), lambda: latest[0], option="--metrics-port")
    stack.callback(server.close)
    where = f"http://127.0.0.1:{server.port}/metrics"
    say(f"metrics: {where}; clients send the token in {token_path()}")

    def take(view: JobView) -> None:
        latest[0] = exposition(view)

    return take


def _exports(environ: Mapping[str, str], say: Say, stack: ExitStack) -> list[Watcher]:
    """Return what takes views for OpenTelemetry and Kubeflow, as far as their variables ask."""
    found: list[Watcher] = []
    if exports.wants_otlp(environ):
        from horovod.runner.observation.otlp import open_otlp

        exporter = open_otlp(environ, say)
        if exporter is not None:
            stack.callback(exporter.close)
            found.append(exporter.take)
    if environ.get(exports.KUBEFLOW_URL):
        from horovod.runner.observation.kubeflow import StatusPosts

        posts = StatusPosts(environ, say)
        stack.callback(posts.close)
        found.append(posts.take)
    return found


@contextmanager
def _page(key: str, port: int, say: Say) -> Iterator[None]:
    """Serve the page from a process of its own, which holds up neither launcher nor ranks."""
    if not key:
        say("there is no page: the launcher could not open a socket for it")
        yield
        return
    process = subprocess.Popen(
        [*python_command("horovod.runner.dashboard"), key, "--port", str(port)],
        env=with_horovod_on_path(inherited_environment()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the launcher: the page shows the end of the job
    )
    thread = threading.Thread(target=_relay, args=(process, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(_END_S)


def _relay(process: subprocess.Popen[bytes], say: Say) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            say(line.decode(errors="replace").rstrip())
