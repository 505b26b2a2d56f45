"""What Horovod's loggers tell while a block runs."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def told(*patterns: str) -> Iterator[None]:
    """Fails unless the block logs exactly these warnings, in any order; none if there is none."""
    listener, logger = Records(), logging.getLogger("horovod")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
    texts = [record.getMessage() for record in listener.records]
    assert len(texts) == len(patterns), texts
    assert all(any(re.search(pattern, text) for text in texts) for pattern in patterns), texts
