"""What horovodrun said at the end of the last jobs that failed, in private files of the user.

``horovodrun report-issue`` puts them into its file. Nothing else reads them.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._base import files

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger(__name__)

MOST_REPORTS = 10
_NAMES = "[0-9]" * 8 + "T" + "[0-9]" * 6 + "Z.*.txt"  # other files in the folder are not ours
MOST_BYTES = 64 * 1024


def reports_folder() -> Path:
    """Return the folder of the reports of this user."""
    return Path.home() / ".horovod" / "reports"


def keep_report(texts: Sequence[str], folder: Path | None = None) -> None:
    """Keep what was said at the end of a job; a folder that cannot be written is no error.

    Args:
        texts: what the launcher printed, in order.
        folder: where; that of this user if None.
    """
    said = "\n".join(filter(None, texts)).encode(errors="replace")[:MOST_BYTES]
    if not said:
        return
    try:
        folder = reports_folder() if folder is None else folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or files.distrust(status):
            return  # a link, or a folder of somebody else
        # Jobs that end at the same time, also on hosts that share a home, have different names.
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
        name = f"{when}.{rest:09d}{files.part_of_process()}.txt"
        with files.writing_whole(folder / name, 0o600) as stream:
            stream.write(said + b"\n")
        for path in kept_reports(folder)[MOST_REPORTS:]:
            with suppress(FileNotFoundError):  # another launcher has removed it
                path.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the user's home
        _logger.debug("the report of this job was not kept: %s", error)


def kept_reports(folder: Path | None = None) -> list[Path]:
    """Return the files of the reports, the newest first; none if the folder cannot be read."""
    try:
        folder = reports_folder() if folder is None else folder
        return sorted(folder.glob(_NAMES), reverse=True)
    except (OSError, RuntimeError):
        return []
