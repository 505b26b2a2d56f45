"""A folder of pairs as arrays on disk: written once, then mapped into memory by each rank.

``images.npy`` (uint8, N x S x S x 3) and ``labels.npy`` (uint8, N x S x S) hold the pairs,
``meta.jsonl`` has one line a pair, and ``data.json`` describes them. It is written last: a folder
without it is not finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from landscapes.errors import LandscapesError, naming_failure
from landscapes.pair import Meta

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = 1
# Ranges of indices, one after the other, disjoint: who judges has seen none of what is judged.
SPLITS = {"train": 0.70, "val": 0.06, "judge-train": 0.18, "judge-val": 0.06}
FEWEST_PAIRS = 20


@dataclass(frozen=True)
class Description:
    """The contents of ``data.json``: ``name`` with version, size and seed, and where each split is.

    ``splits`` maps the name of a split to its first index and the index after its last.
    """

    name: str
    source: str
    size: int
    count: int
    seed: int | None
    splits: dict[str, tuple[int, int]]


def divide(count: int) -> dict[str, tuple[int, int]]:
    """Return the index ranges of all splits of ``count`` pairs. Refuse fewer than 20 pairs."""
    if count < FEWEST_PAIRS:
        raise LandscapesError(
            f"{count} pairs cannot be divided into {', '.join(SPLITS)}: make at least "
            f"{FEWEST_PAIRS}."
        )
    ends = np.round(np.cumsum(list(SPLITS.values())) * count).astype(int).tolist()
    starts = [0, *ends[:-1]]
    return dict(zip(SPLITS, zip(starts, ends, strict=True), strict=True))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for one writer. Refuse it if it is finished or being written."""
    lock = _open_lock(folder)
    try:
        _take(lock, folder)
        yield
        (folder / "writing.lock").unlink()
    finally:
        os.close(lock)


def _open_lock(folder: Path) -> int:
    _refuse_finished(folder)
    if (folder / "images.npy").exists() and not (folder / "writing.lock").exists():
        raise LandscapesError(f"{folder} holds an images.npy of something else: name another one.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "writing.lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise LandscapesError(
            f"The folder {folder} cannot be written: {error.strerror}. Name another one."
        ) from error


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LandscapesError(
            f"Another process is writing to {folder}: name another folder."
        ) from None
    # Another writer may have finished while this one opened the lock.
    _refuse_finished(folder)


def _refuse_finished(folder: Path) -> None:
    if (folder / "data.json").exists():
        raise LandscapesError(f"The folder {folder} already holds pairs: name another one.")


def create_arrays(folder: Path, count: int, size: int) -> None:
    """Create the arrays of ``folder``, filled with zeros. Refuse a disk that is too small."""
    space = os.statvfs(folder)
    needed, free = count * size * size * 4, space.f_bavail * space.f_frsize
    if needed > free:
        raise LandscapesError(
            f"{count} pairs of {size} px take {needed / 1e9:.1f} GB, and {folder} has "
            f"{free / 1e9:.1f} GB free: make fewer or smaller pairs."
        )
    for name, shape in (
        ("images", (count, size, size, 3)),
        ("labels", (count, size, size)),
    ):
        file = folder / f"{name}.npy"
        with naming_failure(file):
            np.lib.format.open_memmap(file, "w+", np.uint8, shape).flush()
            # Takes the space now: a full disk would kill a process that writes into the map.
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def open_arrays(folder: Path, mode: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images and labels of ``folder``, mapped into memory; ``mode`` is "r" or "r+"."""
    arrays = []
    for name in ("images", "labels"):
        try:
            arrays.append(np.lib.format.open_memmap(folder / f"{name}.npy", mode))
        except (OSError, ValueError) as error:
            raise LandscapesError(
                f"{folder / name}.npy cannot be read ({error}): make the data set again."
            ) from error
    return arrays[0], arrays[1]


def finish(folder: Path, description: Description, metas: Sequence[Meta]) -> None:
    """Write a Meta of each pair, then the description that makes the folder complete."""
    lines = (json.dumps(_without_nothing(asdict(meta))) + "\n" for meta in metas)
    partial = folder / "data.json.partial"
    text = json.dumps({"format": FORMAT, **asdict(description)}, indent=2) + "\n"
    with naming_failure(folder):
        (folder / "meta.jsonl").write_text("".join(lines), "utf-8")
        partial.write_text(text, "utf-8")
        partial.replace(folder / "data.json")


def _without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def describe(folder: Path) -> Description:
    """Return the description of a finished folder. Refuse one that is unfinished or newer."""
    path = folder / "data.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored.pop("format") != FORMAT:
            raise LandscapesError(
                f"{path} has a format that this version does not know: make the data set again."
            )
        splits = {name: (int(start), int(end)) for name, (start, end) in stored["splits"].items()}
        return Description(**{**stored, "splits": splits})
    except FileNotFoundError:
        raise LandscapesError(
            f"{folder} holds no finished data set: {path.name} is missing. Make one with "
            "`landscapes render`, or from photos with `landscapes data import`."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LandscapesError(
            f"{path} cannot be understood ({error}): make the data set again."
        ) from error


def read_metas(folder: Path) -> list[Meta]:
    """Return the Meta of each pair of ``folder``."""
    path = folder / "meta.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            return [Meta(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise LandscapesError(
            f"{path} cannot be understood ({error}): make the data set again."
        ) from error


def fingerprint(description: Description, labels: NDArray[np.uint8]) -> str:
    """Return 16 hexadecimal digits that differ if name, count, size or some labels differ."""
    digest = hashlib.sha256(json.dumps(asdict(description), sort_keys=True).encode())
    step = max(1, len(labels) // 64)
    digest.update(np.ascontiguousarray(labels[::step]).tobytes())
    return digest.hexdigest()[:16]
