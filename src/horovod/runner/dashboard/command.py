"""The command lines of those who watch a job."""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.observation.client import StreamClient
from horovod.runner.starting.observed_job import check_dashboard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

_JOB = re.compile(r"\d+(\.\d+)?")


def show(verb: str, words: Sequence[str], stdout: TextIO) -> int:
    """Show a running job until it ends, or Ctrl-C.

    Args:
        verb: "dashboard" for the page, "watch" for the terminal.
        words: options, and maybe the key of the job.
        stdout: where the address, or the table, goes.

    Returns:
        The exit code.

    Raises:
        UsageError: there is no such job, a library is missing, or the port cannot be used.
    """
    options = _parser(verb).parse_args(list(words))
    if verb == "dashboard":
        check_dashboard()
    client = StreamClient(options.job)
    try:
        with suppress(KeyboardInterrupt):
            if verb == "watch":
                from horovod.runner.dashboard.terminal import watch

                watch(client, stdout, once=options.once, as_json=options.json)
            else:
                from horovod.runner.dashboard.server import serve

                serve(client, options.port, lambda url: _say_where(url, stdout))
    finally:
        client.close()
    return 0


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"horovodrun {verb}", allow_abbrev=False)
    add = parser.add_argument
    add("job", nargs="?", type=_job, default="", metavar="JOB",
        help="process id of its horovodrun; may be left out if you run one job")  # fmt: skip
    if verb == "dashboard":
        add("--port", type=int, default=0, help="of 127.0.0.1; any by default")
    else:
        add("--once", action="store_true", help="look once")
        add("--json", action="store_true", help="print a line of JSON for each look")
    return parser


def _job(text: str) -> str:
    if text and not _JOB.fullmatch(text):
        raise UsageError(f"{text!r} is no job: give the process id of its horovodrun")
    return text


def _say_where(url: str, stdout: TextIO) -> None:
    port = url.split(":")[2].split("/")[0]
    host, user = socket.gethostname(), "USER"
    with suppress(KeyError, OSError):  # a container may run as a user without a name
        user = getpass.getuser()
    print(f"the page of the job: {url}", file=stdout)
    print(f"from another machine first: ssh -L {port}:127.0.0.1:{port} {user}@{host}", file=stdout)
    stdout.flush()
