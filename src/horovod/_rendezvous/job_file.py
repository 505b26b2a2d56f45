"""One text from rank 0 to all ranks, in a private file that all of them see.

The file lies in the user's home, which hosts of a cluster share, in a directory that is closed to
everybody else; so it needs no more trust than the user's keys for ssh, which lie beside it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from horovod._base import files
from horovod.errors import StartError

_FOLDER = (".horovod", "jobs")
_PAUSE_S = 0.05


class JobFile:
    """The file of one job.

    Args:
        job: a text that no other job of this user has at the same time.
        home: of the user; the home of this process if None.
    """

    def __init__(self, job: str, home: Path | None = None) -> None:
        self._folder = Path(home or Path.home(), *_FOLDER)
        self.path = self._folder / re.sub(r"[^A-Za-z0-9_.@-]", "_", job)

    def write(self, text: str) -> None:
        """Puts the text there, in one piece, in the place of what a job of that name left.

        Raises:
            StartError: the file cannot be written, or others may read it.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check(self._folder, self._folder.stat())
            with files.writing_whole(self.path, 0o600) as file:
                file.write(text.encode())
        except OSError as error:
            raise StartError(
                f"cannot write {self.path}, where the ranks of this job meet: {error.strerror}"
            ) from error

    def read(self, deadline: float, previous: str = "") -> str:
        """Waits until the file holds something else than ``previous``.

        A file on another host's disk gives no sign when it appears, so it is looked for.

        Raises:
            StartError: it did not appear in time, or belongs to somebody else.
        """
        while True:
            try:
                with open(self.path, encoding="ascii") as file:
                    self._check(self.path, os.fstat(file.fileno()))
                    text = file.read()
                if text and text != previous:
                    return text
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StartError(f"cannot read {self.path}: {error.strerror}") from error
            if time.monotonic() >= deadline:
                raise StartError(
                    f"rank 0 did not write {self.path} in time; do all hosts of the job share this "
                    "home? If not, set HOROVOD_RENDEZVOUS and HOROVOD_SECRET_KEY"
                )
            time.sleep(_PAUSE_S)

    def remove(self) -> None:
        """Once all have read it. Idempotent."""
        self.path.unlink(missing_ok=True)

    def _check(self, path: Path, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise StartError(
                f"{path} belongs to user {status.st_uid} with mode "
                f"{stat.S_IMODE(status.st_mode):04o}, but must be closed to all other users"
            )
