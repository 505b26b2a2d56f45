"""Keep track of the runs of a store: who owns a run, what it trains, and its checkpoint.

A run belongs to the fit that began it last. That fit leaves a record in the folder of the run, with
a token of its own, and its ranks check before each checkpoint that the token is still there. The
checkpoint itself says what it was trained with, so no training goes on with that of another one.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.spark.common.description import differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horovod.spark.common.store import Store

RECORD_FILE = "run.json"
"""What the folder of a run says of the fit that has it."""
DATA = "data."
"""How the names of all that describes data begin."""

_VERSION = 1
_busy: set[str] = set()
_busy_lock = threading.Lock()


@dataclass(frozen=True)
class RunFolder:
    """The folder of the checkpoint of a run.

    Attributes:
        store: which can be sent to ranks.
        run_id: names the run.
        token: of the fit; empty if nobody else can have the run.
        description: what the run trains, see :mod:`horovod.spark.common.description`.
    """

    store: Any
    run_id: str
    token: str = ""
    description: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """The file of the checkpoint; None if the store keeps no runs."""
        if not self.store.saving_runs():
            return None
        folder = self.store.get_checkpoint_path(self.run_id)
        return f"{folder}/{self.store.get_checkpoint_filename()}"

    def save(self, data: bytes) -> None:
        """Replace the checkpoint: readers see the old one or the new one.

        Raises:
            UsageError: another fit has begun the run since.
        """
        if self.path is not None:
            self._check_owner()
            self.store.write_atomically(self.path, data)

    def load(self) -> bytes | None:
        """Return the checkpoint; None if there is none."""
        if self.path is None or not self.store.exists(self.path):
            return None
        return bytes(self.store.read(self.path))

    def described(self) -> str:
        """Return the description of the run, as a checkpoint holds it."""
        return json.dumps(dict(self.description))

    def check(self, text: object) -> None:
        """Refuse a checkpoint of another training.

        Args:
            text: of :meth:`described`, as the checkpoint holds it.

        Raises:
            UsageError: something differs, or the checkpoint does not say what it was trained with.
        """
        try:
            before = json.loads(text if isinstance(text, str) else "")
        except ValueError:
            raise UsageError(
                f"run {self.run_id!r}: its checkpoint does not say what it was trained with; use "
                "another run_id"
            ) from None
        _refuse_others(self.store, self.run_id, before, self.description)

    def say_nothing_is_left(self, epochs: int) -> None:
        """Print that the checkpoint has all epochs, so that nothing is trained."""
        print(
            f"horovod.spark: run {self.run_id!r} has all of its {epochs} epochs: nothing is "
            "trained, and the model is that of its checkpoint; give more epochs or another run_id",
            file=sys.stderr,
            flush=True,
        )

    def _check_owner(self) -> None:
        if not self.token:
            return
        found = _record(self.store, self.run_id)
        if found is None:
            raise UsageError(f"run {self.run_id!r}: its {RECORD_FILE} was removed while it trained")
        if found["token"] != self.token:
            raise UsageError(
                f"run {self.run_id!r}: {found['by']} has begun it since, so this training may not "
                "write its checkpoint; give each fit a run_id of its own, or none"
            )


@contextmanager
def reserved(store: Store, run_id: str | None) -> Iterator[None]:
    """Keep other fits of this process away from a run inside the block.

    Args:
        store: has the run.
        run_id: None for a run that is new, so that nobody else can have it.

    Raises:
        UsageError: another fit has it.
    """
    if run_id is None or not store.saving_runs():
        yield
        return
    path = store.get_run_path(run_id)
    with _busy_lock:
        if path in _busy:
            raise UsageError(
                f"run {run_id!r}: another fit of this process trains it now; give each fit a "
                "run_id of its own, or none"
            )
        _busy.add(path)
    try:
        yield
    finally:
        with _busy_lock:
            _busy.remove(path)


def check_run(store: Store, run_id: str | None, description: Mapping[str, str]) -> None:
    """Refuse a run that trains something else, before there are data.

    Args:
        store: has the run.
        run_id: None for a new run.
        description: of all but the data.

    Raises:
        UsageError: something differs.
    """
    if run_id is None or not store.saving_runs():
        return
    found = _record(store, run_id)
    if found is not None and _has_checkpoint(store, run_id):
        before = {
            name: text for name, text in found["description"].items() if not name.startswith(DATA)
        }
        _refuse_others(store, run_id, before, description)


def begin_run(
    store: Store, run_id: str | None, prefix: str, description: Mapping[str, str]
) -> RunFolder:
    """Begin a run, or go on with one.

    Args:
        store: has the runs.
        run_id: as the user named it; None for a new run, which nobody else has.
        prefix: how the name of a new run begins.
        description: of all that is trained.

    Returns:
        The run, which is that of the caller until another fit begins it.

    Raises:
        UsageError: the run trains something else, or another fit begins it at the same time.
    """
    token = secrets.token_hex(16)
    if not store.saving_runs():
        return RunFolder(store, run_id or _new_name(prefix), "", description)
    if run_id is None:
        run = RunFolder(store, _new_name(prefix), token, description)
        if not _create(run):
            raise UsageError(f"there is a run {run.run_id!r} already, though its name is drawn")
        return run
    run = RunFolder(store, run_id, token, description)
    if _record(store, run_id) is None and _create(run):
        return run
    found = _record(store, run_id)
    # What broke off before its first checkpoint may begin again in another way.
    if found is not None and _has_checkpoint(store, run_id):
        _refuse_others(store, run_id, found["description"], description)
    store.write_text(_record_path(store, run_id), _text_of(run))
    _check_still_ours(run)
    return run


def _create(run: RunFolder) -> bool:
    path = _record_path(run.store, run.run_id)
    if not run.store.write_new(path, _text_of(run).encode()):
        return False
    _check_still_ours(run)
    return True


def _check_still_ours(run: RunFolder) -> None:
    found = _record(run.store, run.run_id)
    if found is None or found["token"] != run.token:
        by = "somebody" if found is None else found["by"]
        raise UsageError(
            f"run {run.run_id!r}: {by} begins it at the same time; give each fit a run_id of its "
            "own, or none"
        )


def _refuse_others(
    store: Any, run_id: str, before: Mapping[str, str], now: Mapping[str, str]
) -> None:
    if text := differences(before, now):
        raise UsageError(
            f"run {run_id!r} in {store.get_runs_path()} trains something else: {text}; train "
            "what it began with, use another run_id, or leave run_id out for a new run"
        )


def _has_checkpoint(store: Any, run_id: str) -> bool:
    path = RunFolder(store, run_id).path
    return path is not None and bool(store.exists(path))


def _record(store: Any, run_id: str) -> dict[str, Any] | None:
    path = _record_path(store, run_id)
    if not store.exists(path):
        return None
    try:
        found = json.loads(store.read(path))
        known = found["version"] == _VERSION and {"token", "by", "description"} <= set(found)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UsageError(
            f"run {run_id!r}: {path} was not written by this version of Horovod; use another run_id"
        )
    return dict(found)


def _record_path(store: Any, run_id: str) -> str:
    return f"{store.get_run_path(run_id)}/{RECORD_FILE}"


def _text_of(run: RunFolder) -> str:
    by = f"a fit of process {os.getpid()} on {socket.gethostname()}"
    return json.dumps(
        {
            "version": _VERSION,
            "token": run.token,
            "by": by,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "description": dict(run.description),
        }
    )


def _new_name(prefix: str) -> str:
    return f"{prefix}_{int(time.time())}_{secrets.token_hex(8)}"
