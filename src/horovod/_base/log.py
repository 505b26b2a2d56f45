"""The logger ``horovod``, for everything that Horovod's Python side reports without an exception.

Each module has a child of it, by its own name, such as ``horovod._settings.config``. What the code
of the caller should do otherwise is a warning of Python's module ``warnings`` instead.

While the application has no handler for them, warnings and errors go to stderr in the form of the
engine's own lines.
"""

from __future__ import annotations

import logging
import sys
import time

TRACE = 5
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_WORDS = {number: word for word, number in LEVELS.items()}
# It stands for what the application says, which by default is to write warnings and errors.
_UNSET = "warning"


class DefaultHandler(logging.Handler):
    """Writes to stderr what no handler of the application gets."""

    hide_time = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, ``[time horovod level] text``, if nobody else does."""
        if sys.stderr is None or self._has_other(record.name):
            return
        when = "" if self.hide_time else time.strftime("%Y-%m-%d %H:%M:%S ")
        word = _WORDS.get(record.levelno, record.levelname.lower())
        try:
            print(f"[{when}horovod {word}] {self.format(record)}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # it was closed, or nobody reads it
            return

    def _has_other(self, name: str) -> bool:
        at: logging.Logger | None = logging.getLogger(name)
        while at is not None:
            if any(handler is not self for handler in at.handlers):
                return True
            at = at.parent if at.propagate else None
        return False


_logger = logging.getLogger("horovod")
_handler = DefaultHandler()
_logger.addHandler(_handler)
logging.addLevelName(TRACE, "TRACE")


def follow(level: str, *, hide_time: bool) -> None:
    """Sets what the user chose by ``HOROVOD_LOG_LEVEL`` and ``HOROVOD_LOG_HIDE_TIME``.

    Args:
        level: one of the keys of :data:`LEVELS`; "warning" leaves the level to the application.
        hide_time: whether lines on stderr have no time.
    """
    _handler.hide_time = hide_time
    if level != _UNSET:
        _logger.setLevel(LEVELS[level])
