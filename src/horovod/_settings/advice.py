"""Advice for a user on variables that are set, though the job can run with them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from horovod._settings import TABLE
from horovod._settings.setting import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod._settings.reader import SettingsReader

_PREFIX = "HOROVOD_"


def advice_on(reader: SettingsReader) -> list[str]:
    """One line for each variable that is unknown, deprecated, or understood as something else."""
    return [
        *unknown_names(reader.variables),
        *_deprecated(reader),
        *_understood_otherwise(reader),
    ]


def unknown_names(names: Iterable[str]) -> list[str]:
    """One line for each name that begins with HOROVOD_ and is no setting, with a suggestion.

    Example:
        >>> unknown_names(["HOROVOD_FUSION_TRESHOLD"])
        ['HOROVOD_FUSION_TRESHOLD is not a setting; did you mean HOROVOD_FUSION_THRESHOLD?']
    """
    return [
        f"{name} is not a setting{_suggestion(name)}"
        for name in sorted(names)
        if name.startswith(_PREFIX) and name not in TABLE
    ]


def _suggestion(name: str) -> str:
    # The prefix, which all have in common, would make everything look alike.
    words = {known.removeprefix(_PREFIX): known for known in TABLE}
    similar = difflib.get_close_matches(name.removeprefix(_PREFIX), words, n=1, cutoff=0.75)
    return f"; did you mean {words[similar[0]]}?" if similar else "; see docs/settings.md"


def _deprecated(reader: SettingsReader) -> list[str]:
    return [
        f"{setting.name} is deprecated; use {setting.replacement}"
        for setting in TABLE.values()
        if setting.status is Status.DEPRECATED and reader.text(setting.name)
    ]


def _understood_otherwise(reader: SettingsReader) -> list[str]:
    """No advice if our launcher set gloo, for scripts that ask whether MPI is needed."""
    meant = []
    if reader.text("HOROVOD_CONTROLLER").lower() == "mpi":
        meant.append("HOROVOD_CONTROLLER=mpi")
    by_launcher = reader.text("HOROVOD_CONTROLLER").lower() == "gloo"
    if reader.text("HOROVOD_CPU_OPERATIONS").lower() == "gloo" and not by_launcher:
        meant.append("HOROVOD_CPU_OPERATIONS=gloo")
    return [f"{text} is understood as native: Horovod's own engine" for text in meant]
