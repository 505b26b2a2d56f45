"""Starts an agent on this machine."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

from horovod._job.environment import python_command
from horovod._job.python_path import with_horovod_on_path

if TYPE_CHECKING:
    from collections.abc import Mapping

_STDERR = 2


def start_agent(environ: Mapping[str, str], stdin: int = -1) -> subprocess.Popen[bytes]:
    """Starts an agent that talks frames over pipes; it does nothing before it gets its job.

    It runs in a session of its own, so that Ctrl-C reaches the launcher alone.

    It inherits the stderr of this process, too, to say there that this process has died.

    Args:
        environ: the variables of the agent itself.
        stdin: a descriptor that it inherits for one of its ranks; -1 for none.

    Raises:
        OSError: the process cannot be created.
    """
    with ExitStack() as stack:
        command = python_command("horovod.runner.agent")
        inherited = [] if stdin < 0 else [stdin]
        try:
            console = os.dup(_STDERR)
        except OSError:  # it is closed
            pass
        else:
            stack.callback(os.close, console)
            command.append(str(console))
            inherited.append(console)
        return subprocess.Popen(
            command,
            env=with_horovod_on_path(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=inherited,
            start_new_session=True,
        )
