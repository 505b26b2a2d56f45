"""Starts a module of Horovod on another host, through the ssh of the system, and explains failures.

The user's own configuration, keys and known hosts hold. On the command line, which everybody on
both machines can read, stand only the host, the way to Python and where modules are; everything
else goes over stdin.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._job.python_path import with_horovod_on_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONNECT_TIMEOUT_S = 10
# Silence and one more probe that is not answered: a host that vanished is noticed after 6 s.
SILENCE_S = 2
NUM_PROBES = 2

_SSH_FAILED = 255
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127

# What ssh, a shell or Python write, and what that means for the user. The first match counts.
_CAUSES = (
    (r"Could not resolve hostname", "its name is unknown; check the spelling, DNS and ssh_config"),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one in known_hosts; if the host was reinstalled, remove the "
        "old key with ssh-keygen -R",
    ),
    (
        r"Host key verification failed|host key is known",
        "its host key is not in known_hosts; log in once by hand, or run ssh-keyscan",
    ),
    (
        r"Permission denied|Too many authentication failures|no mutual signature",
        "permission was denied; ssh must get in without a password: check the key "
        "(--ssh-identity-file), the user and authorized_keys",
    ),
    (
        r"Connection refused",
        "the connection was refused; does sshd run there, at this port (--ssh-port)?",
    ),
    (
        r"[Cc]onnection timed out|Operation timed out|No route to host|Network is unreachable",
        "it cannot be reached; is it up, and does a firewall block ssh?",
    ),
    (
        r"No module named '?horovod",
        "Horovod is not installed for that Python; install the same version there",
    ),
    (
        r"No module named",
        "its Python lacks a module that the agent needs; install Horovod with its dependencies",
    ),
    (
        r"not responding|[Bb]roken pipe|closed by remote host|Connection reset|Connection closed",
        "the connection was lost",
    ),
)


@dataclass(frozen=True)
class SshOptions:
    """The user's options for ssh.

    Attributes:
        port: of sshd on every host; None for what ssh finds in its configuration.
        identity_file: a private key; empty for those that ssh finds.
    """

    port: int | None = None
    identity_file: str = ""


def command_line(host: str, user: str, options: SshOptions, words: Sequence[str]) -> list[str]:
    """The ssh that executes a command on a host. It asks for nothing and forwards nothing.

    Args:
        host: name or address, as ssh takes it.
        user: empty for the one that ssh takes.
        options: of the user.
        words: the command and its arguments.
    """
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": str(SILENCE_S),
        "ServerAliveCountMax": str(NUM_PROBES),
        # A shared connection may be used, but this one must end when its command does.
        "ControlMaster": "no",
        "ClearAllForwardings": "yes",
    }
    line = ["ssh", "-T", "-x", "-a"]
    for name, value in settings.items():
        line += ["-o", f"{name}={value}"]
    if options.port is not None:
        line += ["-p", str(options.port)]
    if options.identity_file:
        line += ["-i", options.identity_file]
    if user:
        line += ["-l", user]
    return [*line, "--", host, shlex.join(words)]


def python_words(module: str, environ: Mapping[str, str]) -> list[str]:
    """The command that runs a module of Horovod in the Python of the same path on another host.

    Args:
        module: its full name.
        environ: of this process; PYTHONPATH is passed on if Horovod is found only with it.
    """
    variables = ["PYTHONSAFEPATH=1"]
    if path := with_horovod_on_path(environ).get("PYTHONPATH"):
        variables.append(f"PYTHONPATH={path}")
    return ["exec", "env", *variables, sys.executable, "-m", module]


def start(
    host: str, user: str, options: SshOptions, module: str, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a module of Horovod on a host; its stdin, stdout and stderr are pipes.

    It runs in a session of its own, so that Ctrl-C reaches the launcher alone, and without a
    terminal, so that nothing can ask for a password.

    Args:
        host, user, options: see :func:`command_line`.
        module: its full name.
        environ: the variables of ssh itself, for its PATH, HOME and agent.

    Raises:
        OSError: there is no ssh here, or no process can be created.
    """
    return subprocess.Popen(
        command_line(host, user, options, python_words(module, environ)),
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def explain(code: int | None, lines: Sequence[str]) -> str:
    """Return one line on why a module did not run on another host. Pure.

    Args:
        code: the exit code of ssh; None if it still runs or was killed.
        lines: what it wrote to stderr.
    """
    said = [line.strip() for line in lines if line.strip() and not set(line.strip()) <= {"@"}]
    if code == _NOT_FOUND:
        cause = f"there is no Python at {sys.executable}; install it at the same path on all hosts"
    elif code == _NOT_EXECUTABLE:
        cause = f"{sys.executable} is not executable there"
    else:
        found = (text for pattern, text in _CAUSES if any(re.search(pattern, x) for x in said))
        cause = next(found, "" if code == _SSH_FAILED else "the agent ended without a message")
    last = said[-1] if said else ""
    return f"{cause} (it said: {last})" if cause and last else cause or last or "ssh failed"
