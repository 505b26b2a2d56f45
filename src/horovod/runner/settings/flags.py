"""The tuning flags of ``horovodrun``: the settings that have a key in the config file.

Each flag becomes one variable of the ranks. A flag that was not given has the value None and leaves
an inherited variable as it is.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from horovod._settings import TABLE
from horovod._settings.setting import Setting, Status
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADINGS = {
    "params": "tuning",
    "autotune": "autotune",
    "checkpoint": "commits in files",
    "timeline": "timeline",
    "stall_check": "stall check",
    "library_options": "libraries",
    "logging": "logging",
}
"""By section of the config file, in the order of ``--help``."""


def heading_of(flag: Setting) -> str:
    """Return the heading under which ``--help`` lists a flag."""
    return _HEADINGS[flag.key.partition(".")[0]]


FLAGS = sorted(
    (setting for setting in TABLE.values() if setting.key),
    key=lambda flag: list(_HEADINGS.values()).index(heading_of(flag)),
)


def help_of(flag: Setting) -> str:
    """Return one line about a flag, with the variable that it sets."""
    has_effect = flag.status is not Status.WITHOUT_EFFECT
    meaning = flag.meaning if has_effect else "no effect; accepted for old scripts"
    return f"{flag.help or meaning} ({flag.name})"


def variables_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Turn the values of tuning flags into environment variables.

    Args:
        values: by :attr:`Setting.attribute`; None, or no value, for a flag that was not given.

    Returns:
        Only the variables of flags that were given.

    Raises:
        UsageError: a number is out of its bounds, or the shutdown time of the stall check does
            not exceed its warning time.
    """
    variables = {}
    for flag in FLAGS:
        value = values.get(flag.attribute)
        if value is None:
            continue
        _check_bounds(flag, value)
        if not flag.needs or values.get(flag.needs.replace("-", "_")):
            variables[flag.name] = _text(flag, value)
    _check_stall_times(values)
    return variables


def bounds_of(flag: Setting) -> str:
    """Return the bounds of a number in words.

    Example:
        >>> bounds_of(FLAGS[0])
        'at least 0'
    """
    minimum, maximum = flag.limits
    if maximum == inf:
        return f"at least {minimum:g}"
    return f"between {minimum:g} and {maximum:g}"


def _check_bounds(flag: Setting, value: Any) -> None:
    minimum, maximum = flag.limits
    if flag.flag_kind in (int, float) and not minimum <= value <= maximum:
        raise UsageError(f"--{flag.flag} is {value}, but must be {bounds_of(flag)}")


def _check_stall_times(values: Mapping[str, Any]) -> None:
    warning = values.get("stall_check_warning_time_seconds")
    shutdown = values.get("stall_check_shutdown_time_seconds")
    if warning and shutdown and shutdown <= warning:
        raise UsageError(
            f"--stall-check-shutdown-time-seconds is {shutdown}, but must exceed "
            f"--stall-check-warning-time-seconds, which is {warning}"
        )


def _text(flag: Setting, value: Any) -> str:
    if flag.kind is bool:
        return "1" if bool(value) != flag.negated else "0"
    return str(value * flag.scale if flag.flag_kind is int else value)
