"""Finds errors before any rank runs: one line instead of a traceback per rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod._settings import FIELDS
from horovod._settings.reader import SettingsReader
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.runner.placing.plan import JobSettings

TIMELINE = "HOROVOD_TIMELINE"
SLOW_WORKER = "HOROVOD_SLOW_WORKER"


def check_settings(settings: JobSettings, *, is_elastic: bool = False) -> None:
    """Makes sure that the ranks will be able to read the variables that they get.

    Args:
        settings: what to run.
        is_elastic: whether the ranks of the job may change.

    Raises:
        StartError: one makes no sense; the message names it.
        UsageError: one is for elastic jobs only.
    """
    reader = SettingsReader(_variables(settings))
    reader.check_words()
    for setting in FIELDS.values():
        reader.value(setting.name)
    mode = reader.value(SLOW_WORKER)
    if mode in ("replace", "remove") and not is_elastic:
        raise UsageError(
            f"--slow-worker {mode} ({SLOW_WORKER}) changes the ranks of a running job, which "
            "only an elastic job allows: give --min-np, too, or use --slow-worker report"
        )


def check_timeline(settings: JobSettings) -> None:
    """Makes sure that rank 0, if it runs on this machine, can write its timeline.

    Raises:
        UsageError: it cannot; the message names the folder.
    """
    text = SettingsReader(_variables(settings)).text(TIMELINE)
    if not text or text.upper() == "DYNAMIC":
        return
    path = os.path.join(settings.cwd, text)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        problem = "it is a folder; name a file"
    elif not os.path.isdir(folder):
        problem = f"there is no folder {folder}; make it, or name another file"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        problem = "it is not writable; name another file"
    else:
        return
    raise UsageError(f"the timeline (--timeline-filename or {TIMELINE}) is to be {text}: {problem}")


def _variables(settings: JobSettings) -> Mapping[str, str]:
    """Return the variables that ranks of this machine get from the user's environment and flags."""
    return {**settings.environ, **settings.variables}
