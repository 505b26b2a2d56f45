"""The tuning flags of ``horovodrun``, as the table of settings spells them.

Each becomes one variable of the ranks. A flag that was not given has the value None and leaves an
inherited variable as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod._settings import TABLE
from horovod._settings.setting import Kind, Setting, Spelling, Status
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Flag:
    """One tuning flag.

    Attributes:
        name: without dashes in front; the words of a switch that turns it on.
        variable: the environment variable that carries the value to the ranks.
        section: the heading under which ``--help`` lists it.
        help: one line.
        kind: int, float, str, or bool for a switch.
        off: the words that turn a switch off.
        aliases: older (on, off) spellings of a switch.
        minimum, maximum: bounds of a number, both included.
        scale: what one unit of the flag is in units of the variable.
        negated: a switch whose variable means the opposite of the flag.
        needs: the attribute of another flag without which this one is not passed on.
        choices: the only texts allowed.
        integers: a text of integers with commas between.
        key: of the config file, as ``section.key``.
        hidden_key: an older key of the config file; of a switch, it means the opposite.
    """

    name: str
    variable: str
    section: str
    help: str
    kind: type[int] | type[float] | type[str] | type[bool]
    off: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    minimum: float = 0
    maximum: float = float("inf")
    scale: int = 1
    negated: bool = False
    needs: str = ""
    choices: tuple[str, ...] = ()
    integers: bool = False
    key: str = ""
    hidden_key: str = ""

    @property
    def attribute(self) -> str:
        """The key under which the parsed value is found."""
        return self.name.replace("-", "_")


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

_KINDS: dict[Kind, type[Any]] = {Kind.FLAG: bool, Kind.INTEGER: int, Kind.NUMBER: float}

_WITHOUT_EFFECT = "no effect; accepted for old scripts"


def _flag_of(setting: Setting, spelling: Spelling) -> Flag:
    is_switch = setting.kind is Kind.FLAG
    has_effect = setting.status is not Status.WITHOUT_EFFECT
    return Flag(
        name=spelling.name,
        variable=setting.name,
        section=_HEADINGS[spelling.key.partition(".")[0]],
        help=spelling.help or (setting.meaning if has_effect else _WITHOUT_EFFECT),
        kind=int if spelling.whole else _KINDS.get(setting.kind, str),
        off=spelling.off or (f"no-{spelling.name}" if is_switch else ""),
        aliases=spelling.aliases,
        minimum=(setting.minimum or 0) / spelling.scale,
        maximum=float("inf") if setting.maximum is None else setting.maximum / spelling.scale,
        scale=spelling.scale,
        negated=spelling.negated,
        needs=spelling.needs.replace("-", "_"),
        choices=tuple(word.upper() if spelling.capitals else word for word in setting.words),
        integers=setting.kind is Kind.INTEGERS,
        key=spelling.key,
        hidden_key=spelling.hidden_key,
    )


def _flags() -> tuple[Flag, ...]:
    """A flag for each setting that the command line spells, by heading."""
    flags = [
        _flag_of(setting, setting.flag)
        for setting in TABLE.values()
        if isinstance(setting.flag, Spelling)
    ]
    order = list(_HEADINGS.values())
    return tuple(sorted(flags, key=lambda flag: order.index(flag.section)))


FLAGS = _flags()


def variables_of(values: Mapping[str, Any], flags: tuple[Flag, ...] = FLAGS) -> dict[str, str]:
    """Turns the values of tuning flags into environment variables.

    Args:
        values: by :attr:`Flag.attribute`; a missing key or None means that the flag was not given.
        flags: the table to use.

    Returns:
        Only the variables of flags that were given.

    Raises:
        UsageError: a number is out of its bounds, or the shutdown time of the stall check does
            not exceed its warning time.
    """
    variables = {}
    for flag in flags:
        value = values.get(flag.attribute)
        if value is None:
            continue
        _check_bounds(flag, value)
        if not flag.needs or values.get(flag.needs):
            variables[flag.variable] = _text(flag, value)
    _check_stall_times(values)
    return variables


def bounds_of(flag: Flag) -> str:
    """The bounds of a number in words.

    Example:
        >>> bounds_of(FLAGS[0])
        'at least 0'
    """
    if flag.maximum == float("inf"):
        return f"at least {flag.minimum:g}"
    return f"between {flag.minimum:g} and {flag.maximum:g}"


def _check_bounds(flag: Flag, value: Any) -> None:
    if flag.kind in (int, float) and not flag.minimum <= value <= flag.maximum:
        raise UsageError(f"--{flag.name} is {value}, but must be {bounds_of(flag)}")


def _check_stall_times(values: Mapping[str, Any]) -> None:
    warning = values.get("stall_check_warning_time_seconds")
    shutdown = values.get("stall_check_shutdown_time_seconds")
    if warning and shutdown and shutdown <= warning:
        raise UsageError(
            f"--stall-check-shutdown-time-seconds is {shutdown}, but must exceed "
            f"--stall-check-warning-time-seconds, which is {warning}"
        )


def _text(flag: Flag, value: Any) -> str:
    if flag.kind is bool:
        return "1" if bool(value) != flag.negated else "0"
    return str(value * flag.scale if flag.kind is int else value)
