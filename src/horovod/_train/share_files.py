"""Optimizer state in files: each rank writes its share, and a manifest makes them one checkpoint.

A folder holds the parts of a save, with a token of the save in their names, and
``shares.json``, the manifest, which names them. It is written last, under another name, and then
renamed: a reader finds all of its parts, or those of the save before. The parts have the
format of commits (:mod:`horovod._train.elastic.checkpoint.file`): data with a checksum, no pickles.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod._train.elastic.checkpoint import file
from horovod._train.elastic.checkpoint.data import NoDataError, Packed
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from horovod._train.shares import Piece

MANIFEST = "shares.json"
_VERSION = 1
_SECTION = "share"
_STALE_S = 3600.0
# Of whole parts, and of those that are being written.
_IS_PART = re.compile(rf"shares-[0-9a-f]{{16}}-\d+-of-\d+(\..+{re.escape(files.PART)})?").fullmatch


@dataclass(frozen=True)
class Part:
    """The share of one rank.

    Attributes:
        name: of its file.
        num_bytes: of the file.
        pieces: parameter, first element and end of each piece in it, in order.
    """

    name: str
    num_bytes: int
    pieces: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Manifest:
    """What makes parts one checkpoint.

    Attributes:
        parameters: for each its name and its layout as a text; a share is of the same elements
            only if both are equal.
        parts: in rank order.
    """

    parameters: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]

    def to_json(self) -> str:
        """Return it as a text."""
        return json.dumps({"version": _VERSION, **asdict(self)})

    @staticmethod
    def from_json(text: str, path: str) -> Manifest:
        """Return the manifest in a text.

        Raises:
            UsageError: it is none, or of another version.
        """
        try:
            values = json.loads(text)
            if values["version"] != _VERSION:
                raise UsageError(f"{path} is of version {values['version']}, not of {_VERSION}")
            parts = [
                Part(str(each["name"]), int(each["num_bytes"]), _piece_numbers(each["pieces"]))
                for each in values["parts"]
            ]
            parameters = [(str(name), str(layout)) for name, layout in values["parameters"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no manifest of shares: {error}") from None
        if any(os.path.basename(part.name) != part.name for part in parts):
            raise UsageError(f"{path} names a part outside of its folder")
        return Manifest(tuple(parameters), tuple(parts))


def _piece_numbers(values: Any) -> tuple[tuple[int, int, int], ...]:
    return tuple((int(parameter), int(begin), int(end)) for parameter, begin, end in values)


def part_name(token: str, rank: int, num_ranks: int) -> str:
    """Return the name of the file of a rank; saves have different tokens."""
    return f"shares-{token}-{rank}-of-{num_ranks}"


def write_part(folder: Path, name: str, pieces: Sequence[Piece], values: Mapping[str, Any]) -> Part:
    """Write the share of a rank, so that it is on the disk when this returns.

    Args:
        folder: is made if it is not there.
        name: of the file, which appears when it is whole.
        pieces: what is in the share.
        values: data by name.

    Raises:
        UsageError: a value is no data.
        OSError: it cannot be written.
    """
    packed = Packed()
    try:
        texts = {_SECTION: {key: packed.pack(value) for key, value in values.items()}}
    except NoDataError as error:
        raise UsageError(f"the optimizer state holds {error}, which files do not hold") from None
    folder.mkdir(parents=True, exist_ok=True)
    with files.writing_whole(folder / name, syncs=True) as stream:
        file.write(stream, texts, packed.buffers)
    numbers = tuple((piece.parameter, piece.begin, piece.end) for piece in pieces)
    return Part(name, (folder / name).stat().st_size, numbers)


def publish(folder: Path, manifest: Manifest) -> None:
    """Make parts that have been written the checkpoint of a folder; remove those of the one before.

    Parts of saves that were killed are removed after an hour: what is younger may belong to a save
    of another job.

    Args:
        folder: in which all parts are.
        manifest: names them.

    Raises:
        UsageError: a part is not there as a whole: this process and its writer see different
            folders.
        OSError: the manifest cannot be written.
    """
    for rank, part in enumerate(manifest.parts):
        path = folder / part.name
        if not path.is_file() or path.stat().st_size != part.num_bytes:
            raise UsageError(
                f"the part of rank {rank} is not in {folder} here; the folder must be on a file "
                "system that all hosts share"
            )
    before = _parts_before(folder)
    with files.writing_whole(folder / MANIFEST, syncs=True) as stream:
        stream.write(manifest.to_json().encode())
    _sync(folder)
    kept = {part.name for part in manifest.parts}
    for part in before:
        if part.name not in kept:
            remove_part(folder, part.name)
    _remove_stale_parts(folder, kept)


def _remove_stale_parts(folder: Path, kept: set[str]) -> None:
    """Remove what saves left that never came to their manifest."""
    with suppress(OSError), os.scandir(folder) as entries:
        # By the clock that made their times, which may be that of another host.
        before = (folder / MANIFEST).stat().st_mtime - _STALE_S
        for entry in entries:
            with suppress(OSError):
                is_old = entry.stat(follow_symlinks=False).st_mtime < before
                if is_old and entry.name not in kept and _IS_PART(entry.name):
                    os.unlink(entry.path)


def _parts_before(folder: Path) -> tuple[Part, ...]:
    try:
        return read_manifest(folder).parts
    except (UsageError, FileNotFoundError):
        return ()  # what cannot be read is replaced


def remove_part(folder: Path, name: str) -> None:
    """Remove a part that no manifest needs; one that is gone already is no error."""
    with suppress(OSError):
        (folder / name).unlink()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder.

    Raises:
        FileNotFoundError: there is none.
        UsageError: it is none that this version can read.
    """
    path = folder / MANIFEST
    return Manifest.from_json(path.read_text(), str(path))


def read_part(folder: Path, part: Part) -> dict[str, Any]:
    """Return the values of a part by name.

    Raises:
        UsageError: the part is missing or damaged.
    """
    path = folder / part.name
    try:
        with path.open("rb") as stream:
            return _read(stream, path, part.num_bytes)
    except OSError as error:
        raise UsageError(f"the part {path} of a checkpoint cannot be read: {error}") from error


def _read(stream: BinaryIO, path: Path, num_bytes: int) -> dict[str, Any]:
    size = os.fstat(stream.fileno()).st_size
    try:
        if size != num_bytes:
            raise file.IncompleteError(f"it has {size} bytes instead of {num_bytes}")
        return file.read(stream, size)[_SECTION]
    except (file.IncompleteError, file.UnreadableError, KeyError) as error:
        raise UsageError(f"the part {path} of a checkpoint is damaged: {error}") from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can do it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
