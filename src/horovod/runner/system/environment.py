"""Which variables of the launcher hold on other hosts; see also :mod:`horovod._job.environment`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


# Variables that hold for one machine and one login. On another host the ranks get what is there.
_OWN = re.compile(
    r"BASH_FUNC_.*|OLDPWD|PWD|SHLVL|_|HOSTNAME|HOME|USER|LOGNAME|MAIL|SHELL|TERM|TMPDIR|DISPLAY"
    r"|XAUTHORITY|WAYLAND_DISPLAY|DBUS_.*|XDG_RUNTIME_DIR|XDG_SESSION_.*|SSH_.*"
    r"|.*(?:CUDA|HIP|ROCR|ASCEND)_VISIBLE_DEVICES"
)


def without_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold on any host of a job."""
    return {name: value for name, value in environ.items() if not _OWN.fullmatch(name)}


def only_own(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold for this machine and this login only."""
    return {name: value for name, value in environ.items() if _OWN.fullmatch(name)}
