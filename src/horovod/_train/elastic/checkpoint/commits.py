"""Which commits are written and read, and when."""

from __future__ import annotations

import errno
import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod._rank import context
from horovod._train.elastic.checkpoint import file
from horovod._train.elastic.checkpoint.data import NoDataError, Packed
from horovod._train.elastic.checkpoint.folder import open_folder
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horovod._train.elastic.checkpoint.folder import Folder

_logger = logging.getLogger(__name__)

_KEPT = 2
_PATIENCE_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Snapshot:
    """The state kept by a commit, which no code changes any more.

    Attributes:
        kept: by attribute, what its handler has kept; all of it must be data.
        plain: the other attributes; those that are no data are left out.
    """

    kept: Mapping[str, Any]
    plain: Mapping[str, Any]


class Commits:
    """The files of one state of a program.

    Args:
        folder: where they are.
        every: how many commits there are from one that is written to the next.
        number: which state of the program it is, from 0.
        patience_s: how long the end of the program waits for a file.
    """

    def __init__(
        self, folder: Folder, every: int, number: int = 0, patience_s: float = _PATIENCE_S
    ) -> None:
        self._folder = folder
        self._every = every
        self._begin = f"state{number}-" if number else ""
        self._name = re.compile(rf"{self._begin}commit-(\d{{9,}})")
        self._patience_s = patience_s
        self._made = 0
        self._lock = threading.Lock()
        # What the writer takes next, and whether it looks for it.
        self._next: Snapshot | None = None
        self._is_writing = False
        self._writer: threading.Thread | None = None
        # Files that were written or read here, and those that could not be read.
        self._good: set[int] = set()
        self._damaged: set[int] = set()
        # What was said already.
        self._left_out: set[str] = set()
        self._reason = ""

    def made(self, snapshot: Callable[[], Snapshot], *, rank: int) -> None:
        """Takes note of a commit, and writes it behind the back of the program if it is its turn.

        While one is being written the next ones wait, and the newest of them is written then.

        Args:
            snapshot: returns that of the commit; only rank 0 writes.
            rank: this one.
        """
        self._made += 1
        if rank != 0 or self._made % self._every:
            return
        try:
            taken = snapshot()
        except NoDataError as error:
            self._report(self._folder.url, _text_of(error))
            return
        with self._lock:
            self._next = taken
            if self._is_writing:
                return
            self._is_writing = True
        # Not a thread that keeps a process from ending: a file server may be gone.
        self._writer = threading.Thread(
            target=self._write_all, name="horovod-checkpoint", daemon=True
        )
        self._writer.start()

    def finish(self, *, writes: bool) -> None:
        """Awaits what is being written.

        Args:
            writes: whether a commit that waits for its turn is written, too.
        """
        if self._writer is None:
            return
        if not writes:
            with self._lock:
                self._next = None
        self._writer.join(self._patience_s)
        if self._writer.is_alive():
            _logger.warning(
                "rank 0: the commit that is being written to %s is given up: it was not done after "
                "%g s",
                self._folder.url,
                self._patience_s,
            )

    def newest(self) -> tuple[str, Snapshot] | None:
        """Reads the newest commit that is complete.

        Returns:
            The name of its file, and the commit; None if there is no file of a commit.

        Raises:
            StartError: there may be one, but it cannot be read.
        """
        path = self._folder.url
        damaged = []
        try:
            for number in sorted(self._numbers(), reverse=True):
                path = f"{self._folder.url}/{self._name_of(number)}"
                try:
                    with self._folder.reading(self._name_of(number)) as (stream, size):
                        values = file.read(stream, size)
                    self._good.add(number)
                    return path, Snapshot(values["kept"], values["plain"])
                except file.IncompleteError as error:
                    self._damaged.add(number)
                    damaged.append(f"{self._name_of(number)} ({error})")
                    _logger.warning(
                        "%s is damaged and is left out: %s; the file is kept", path, error
                    )
        except Exception as error:  # of any file system
            raise StartError(
                f"rank 0 cannot read {path}, from which training would go on: {_text_of(error)}; "
                "fix that, or use another --checkpoint-dir to start from the beginning"
            ) from error
        if damaged:
            raise StartError(
                f"there are commits in {self._folder.url}, but none of them can be read: "
                f"{', '.join(damaged)}; replace them by good copies, or move them away or use "
                "another --checkpoint-dir to start from the beginning"
            )
        return None

    def _write_all(self) -> None:
        """Writes until nothing waits."""
        while True:
            with self._lock:
                snapshot, self._next = self._next, None
                if snapshot is None:
                    self._is_writing = False
                    return
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        path = self._folder.url
        try:
            numbers = self._numbers()
            number = max(numbers, default=0) + 1
            name = self._name_of(number)
            path = f"{path}/{name}"
            packed = Packed()
            values = self._pack(snapshot, packed)
            self._write_file(
                name, numbers, lambda stream: file.write(stream, values, packed.buffers)
            )
            self._good.add(number)
            for old in self._readable([*self._numbers(), number])[:-_KEPT]:
                self._remove(old)
        except Exception as error:  # of any file system, and of the values
            self._report(path, _text_of(error))
            return
        self._reason = ""
        _logger.info("rank 0: wrote %s", path)

    def _write_file(self, name: str, numbers: list[int], fill: Callable[[BinaryIO], None]) -> None:
        """Writes a file; on a full disk, in place of the oldest if a newer one is good."""
        looked_for_parts = False
        while True:
            try:
                self._folder.write(name, fill)
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                if not looked_for_parts and self._folder.remove_parts():
                    looked_for_parts = True
                    continue
                readable = self._readable(numbers)
                if len(readable) < _KEPT:
                    raise
                _logger.info("rank 0: %s is full: its oldest commit goes first", self._folder.url)
                self._remove(readable[0])
                numbers = [number for number in numbers if number != readable[0]]

    def _readable(self, numbers: Iterable[int]) -> list[int]:
        """Return the good ones, oldest first; unreadable files are neither counted nor removed.

        What another process has written is read once.
        """
        return [number for number in sorted(set(numbers)) if self._is_good(number)]

    def _is_good(self, number: int) -> bool:
        if number not in self._good | self._damaged:
            try:
                with self._folder.reading(self._name_of(number)) as (stream, size):
                    file.check(stream, size)
                self._good.add(number)
            except (file.IncompleteError, file.UnreadableError):
                self._damaged.add(number)
            except Exception:  # of any file system; it may be there again the next time
                return False
        return number in self._good

    def _remove(self, number: int) -> None:
        self._good.discard(number)
        self._folder.remove(self._name_of(number))

    def _report(self, path: str, reason: str) -> None:
        """Says once why nothing can be written, until it can."""
        if reason != self._reason:
            _logger.warning(
                "rank 0: the commit was not written to %s: %s; training goes on, and the next one "
                "is tried again",
                path,
                reason,
            )
        self._reason = reason

    def _pack(self, snapshot: Snapshot, packed: Packed) -> dict[str, dict[str, Any]]:
        kept, plain = {}, {}
        for name, value in snapshot.kept.items():
            try:
                kept[name] = packed.pack(value)
            except NoDataError as error:
                raise NoDataError(f"what state.{name} has kept holds {error}") from None
        for name, value in snapshot.plain.items():
            try:
                plain[name] = packed.pack(value)
            except NoDataError as error:
                if name not in self._left_out:
                    _logger.warning(
                        "rank 0: commits in %s are without state.%s: it holds %s; give its class "
                        "state_dict() and load_state_dict()",
                        self._folder.url,
                        name,
                        error,
                    )
                self._left_out.add(name)
        return {"kept": kept, "plain": plain}

    def _numbers(self) -> list[int]:
        found = map(self._name.fullmatch, self._folder.names())
        return [int(match[1]) for match in found if match]

    def _name_of(self, number: int) -> str:
        return f"{self._begin}commit-{number:09}"


def open_commits(states: int) -> Commits | None:
    """The commits in files of a state, as the settings of the job say; None for none.

    Args:
        states: how many states of the program there are already.

    Raises:
        StartError: the folder needs what is not installed.
    """
    settings = context.settings()
    if not settings.checkpoint_dir:
        return None
    return Commits(open_folder(settings.checkpoint_dir), settings.checkpoint_every, states)


def _text_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    is_clear = isinstance(error, OSError | NoDataError | file.UnreadableError)
    return text if is_clear else f"{type(error).__name__}: {text}"
