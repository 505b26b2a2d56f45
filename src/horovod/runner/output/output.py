"""The output of the ranks: prefixes on the console, and files.

The console gets ``[rank]<stdout>:`` or ``[rank]<stderr>:`` in front of every line. The files of
``--output-filename`` get the bytes as the rank wrote them, without prefixes.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.output.lines import LinePrefixer, Tail
from horovod.runner.output.outlets import FileOutlet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from horovod.runner.output.console import Console

STREAMS = ("stdout", "stderr")

# While more than this waits for the console or the files, the agents are not told that their
# output was taken, and they let the ranks wait.
_FULL_BYTES = 4 * 1024 * 1024
_ROOM_BYTES = 3 * 1024 * 1024

# Of the palette's colors those that can be read on dark and on light ground, one rank after the
# other.
_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 32, 33, 35, 34, 31))
_NO_COLOUR = "\x1b[0m"

# A line that lacks its end so long after its last part is a prompt. A print() of Python without a
# buffer writes the end of its line by itself.
PROMPT_S = 0.1


class Output:
    """The output of all ranks. Safe to use from several threads; nothing here waits.

    Args:
        console: gets whole lines.
        directory: for files ``rank.<rank>/stdout`` and ``rank.<rank>/stderr``; None for no files.
        timestamps: write the time in front of the prefix.
        now: the text of the current time.
        colored: the streams whose prefixes have a color for each rank.
        stdin_rank: who may ask the user, so that what it writes appears without an end of line.

    Attributes:
        listener: called with the rank and the bytes of each write, while other threads wait for it.
    """

    def __init__(
        self,
        console: Console,
        *,
        directory: str | None = None,
        timestamps: bool = False,
        now: Callable[[], str] = time.asctime,
        colored: Collection[str] = (),
        stdin_rank: int | None = None,
    ) -> None:
        self.console = console
        self.listener: Callable[[int, bytes], object] = lambda rank, data: None
        # The worker that has this rank from the start, and with it the stdin.
        self._asking = stdin_rank
        self._ranks: dict[int, int] = {}  # by worker
        self._width = 1  # of a rank, in the names of folders
        self._directory: Path | None = None
        self._prompts: dict[str, float] = {}  # by stream, when it shall appear
        self._now = now if timestamps else lambda: ""
        self._coloured = frozenset(colored)
        self._lock = threading.Lock()
        self._prefixers: dict[tuple[int, str], LinePrefixer] = {}
        self._tails: dict[int, Tail] = {}
        self._num_lines = 0  # on the console
        self._num_lines_at: dict[int, int] = {}  # the last time that a worker wrote to stderr
        self._files: dict[tuple[int, str], FileOutlet] = {}
        self._disk = console.add_writer()
        if directory is not None:
            self._directory = Path(directory)

    def place(self, ranks: Mapping[int, int], size: int = 0) -> None:
        """Says which rank a worker has now; a worker of which nothing was said has its own number.

        The files of a rank stay those of the rank, whoever has it.

        Args:
            ranks: by worker; further ones, or other ranks of those that are known.
            size: how many ranks there may be, for the names of folders; 0 if that was said before.

        Raises:
            UsageError: the files cannot be created.
        """
        with self._lock:
            self._ranks.update(ranks)
            self._width = max(self._width, len(str(size - 1)) if size else 1)
            if self._directory is not None:
                for rank in ranks.values():
                    self._open_files(self._directory, rank)

    def _open_files(self, directory: Path, rank: int) -> None:
        folder = directory / f"rank.{rank:0{self._width}d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stream in STREAMS:
                if (rank, stream) not in self._files:
                    self._files[rank, stream] = FileOutlet(folder / stream)
        except OSError as error:
            self._close_files()
            raise UsageError(
                f"cannot write the output of the ranks to {directory}: {error.strerror}"
            ) from None

    def write(self, worker: int, stream: str, data: bytes) -> None:
        """Takes bytes that a worker wrote.

        Args:
            worker: who wrote them.
            stream: "stdout" or "stderr".
            data: any number of bytes; lines may be split between calls.
        """
        with self._lock:
            rank = self._ranks.get(worker, worker)
            self.listener(rank, data)
            if stream == "stderr":
                self._tails.setdefault(worker, Tail()).feed(data)
            if (rank, stream) in self._files:
                self._disk.put(self._files[rank, stream], data)
            prefixer = self._prefixers.get((worker, stream))
            if prefixer is None:
                prefixer = LinePrefixer(partial(self._prefix, worker, stream))
                self._prefixers[worker, stream] = prefixer
            lines = prefixer.feed(data)
            self._num_lines += lines.count(b"\n")
            if stream == "stderr":
                self._num_lines_at[worker] = self._num_lines
            if worker == self._asking:
                self._prompts.pop(stream, None)
                if prefixer.holds_text:
                    self._prompts[stream] = time.monotonic() + PROMPT_S
            self._put(stream, lines, prefixer)

    def show_prompts(self) -> float | None:
        """Shows what the rank with the user's stdin has written and not ended, if it is due.

        Returns:
            The seconds until the next prompt is due; None if there is none.
        """
        if self._asking is None:
            return None
        with self._lock:
            now_s = time.monotonic()
            for stream in [each for each, due_s in self._prompts.items() if due_s <= now_s]:
                del self._prompts[stream]
                prefixer = self._prefixers[self._asking, stream]
                self._put(stream, prefixer.begin(), prefixer)
            return min(self._prompts.values(), default=now_s) - now_s if self._prompts else None

    def _put(self, stream: str, text: bytes, prefixer: LinePrefixer) -> None:
        """Lets no line of a rank, or its other stream, begin behind a prompt."""
        if not text:
            return
        for name in STREAMS if self._asking is not None else ():
            asking = self._prefixers.get((self._asking or 0, name))
            meets = name == stream or self.console.is_one
            if asking is not None and asking is not prefixer and asking.has_begun and meets:
                asking.break_off()
                text = b"\n" + text
        self.console.put(stream, text)

    def _prefix(self, worker: int, stream: str) -> bytes:
        rank = self._ranks.get(worker, worker)
        text = f"{self._now()}[{rank}]<{stream}>:"
        if stream in self._coloured:
            text = f"{_COLOURS[rank % len(_COLOURS)]}{text}{_NO_COLOUR}"
        return text.encode()

    def stderr_tail(self, worker: int) -> tuple[str, ...]:
        """The last lines that a worker wrote to stderr, at most 20."""
        with self._lock:
            return self._tails[worker].lines() if worker in self._tails else ()

    def lines_since(self, worker: int) -> int:
        """Return how many lines of others the console got after a worker's last line of stderr."""
        with self._lock:
            return self._num_lines - self._num_lines_at.get(worker, 0)

    def forget(self, worker: int) -> None:
        """Hand over the last lines of a worker that has ended, and keep no more of what it wrote.

        A process that it has left behind may still write.
        """
        with self._lock:
            for stream in STREAMS:
                prefixer = self._prefixers.pop((worker, stream), None)
                if prefixer is not None:
                    self.console.put(stream, prefixer.finish())
            self._tails.pop(worker, None)
            if worker == self._asking:
                self._prompts.clear()

    def has_room(self) -> bool:
        """Whether more should come now; if not, the console has news when it should again."""
        if self.console.pending < _FULL_BYTES:
            return True
        return self.console.tell_below(_ROOM_BYTES)

    def file_error(self) -> OSError | None:
        """Return the error of a file that takes nothing more; None if all do, or the disk was
        given up.
        """
        errors = (self._disk.error_of(file) for file in self._files.values())
        return next(filter(None, errors), None)

    def give_up_files(self) -> None:
        """Writes nothing more to the files."""
        with self._lock:
            self._close_files()

    def finish(self) -> None:
        """Hands over the last lines that lack their end."""
        with self._lock:
            for (_, stream), prefixer in self._prefixers.items():
                self.console.put(stream, prefixer.finish())

    def close(self) -> None:
        """Closes the files, and drops what was not written. Idempotent."""
        with self._lock:
            self._close_files()

    def _close_files(self) -> None:
        self._disk.close()
        if self._disk.finished:
            for file in self._files.values():
                file.close()
        self._files.clear()
