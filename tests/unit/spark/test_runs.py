"""Runs of a store: which are new, which go on, and which are refused."""

from __future__ import annotations

import datetime
import enum
import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horovod.errors import UsageError
from horovod.spark.common import runs
from horovod.spark.common.description import described, differences, flat
from horovod.spark.common.runs import RunFolder, begin_run, check_run, reserved
from horovod.spark.common.store import FilesystemStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FilesystemStore:
    memory = f"memory://{uuid.uuid4().hex}"
    return FilesystemStore(str(tmp_path) if request.param == "file" else memory)


def train(run: RunFolder, epochs: int) -> list[str]:
    """Trains as an estimator does: each epoch adds what the run trains."""
    data = run.load()
    history: list[str] = []
    if data is not None:
        found = json.loads(data)
        run.check(found["run"])
        history = found["history"]
    while len(history) < epochs:
        history.append(run.description["rate"])
        run.save(json.dumps({"run": run.described(), "history": history}).encode())
    return history


def test_runs_without_a_name_are_new_also_in_the_same_second(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.time, "time", lambda: 1000.0)
    made = [begin_run(store, None, "torch", {"rate": str(number)}) for number in range(20)]
    assert len({run.run_id for run in made}) == 20
    for run in made:
        assert run.run_id.startswith("torch_1000_")
        assert len(run.run_id) == len("torch_1000_") + 16
        # The folder is there at once.
        assert store.exists(store.get_run_path(run.run_id))
    assert [train(run, 1) for run in made] == [[str(number)] for number in range(20)]


def test_a_run_goes_on_and_one_of_something_else_is_refused(store: FilesystemStore) -> None:
    assert train(begin_run(store, "r", "torch", {"rate": "1", "data.rows": "5"}), 1) == ["1"]
    assert train(begin_run(store, "r", "torch", {"rate": "1", "data.rows": "5"}), 2) == ["1"] * 2
    with pytest.raises(
        UsageError, match=r"run 'r' in .*runs trains something else: rate was 1, an"
    ):
        begin_run(store, "r", "torch", {"rate": "2", "data.rows": "5"})
    with pytest.raises(UsageError, match=r"data\.rows was 5, and is 6; .*use another run_id"):
        begin_run(store, "r", "torch", {"rate": "1", "data.rows": "6"})
    check_run(store, "r", {"rate": "1"})
    check_run(store, None, {"rate": "2"})
    with pytest.raises(UsageError, match="rate was 1, and is 2"):
        check_run(store, "r", {"rate": "2"})


def test_what_has_no_checkpoint_yet_may_begin_in_another_way(store: FilesystemStore) -> None:
    first = begin_run(store, "r", "torch", {"rate": "1"})
    check_run(store, "r", {"rate": "2"})
    assert train(begin_run(store, "r", "torch", {"rate": "2"}), 1) == ["2"]
    with pytest.raises(UsageError, match=r"run 'r': a fit of process .* has begun it since"):
        first.save(b"x")


def test_a_checkpoint_says_itself_what_it_was_trained_with(store: FilesystemStore) -> None:
    begun = begin_run(store, "r", "torch", {"rate": "2"})
    other = RunFolder(store, "r", "", {"rate": "1"})
    train(other, 1)
    with pytest.raises(UsageError, match="rate was 1, and is 2"):
        train(begun, 1)
    for text in (None, "", 3):
        with pytest.raises(UsageError, match="does not say what it was trained with"):
            begun.check(text)


def test_a_run_is_that_of_one_fit_of_a_process(store: FilesystemStore) -> None:
    with reserved(store, "r"):
        with (
            pytest.raises(UsageError, match="another fit of this process trains it now"),
            reserved(store, "r"),
        ):
            pass
        with reserved(store, "s"), reserved(store, None), reserved(store, None):
            pass
    with reserved(store, "r"):
        pass


def test_a_folder_that_is_removed_or_foreign_is_told(store: FilesystemStore) -> None:
    run = begin_run(store, "r", "torch", {})
    store.fs.rm(store.get_localized_path(store.get_run_path("r")), recursive=True)
    with pytest.raises(UsageError, match=r"its run\.json was removed while it trained"):
        run.save(b"x")
    store.write_text(store.get_run_path("r") + "/run.json", "[]")
    with pytest.raises(UsageError, match="was not written by this version of Horovod"):
        begin_run(store, "r", "torch", {})


def test_nothing_is_written_where_runs_are_not_saved(tmp_path: Path) -> None:
    store = FilesystemStore(str(tmp_path / "s"), save_runs=False)
    for name in ("r", "r", None):
        run = begin_run(store, name, "torch", {"rate": name or ""})
        run.save(b"x")
        assert run.load() is None
    assert not (tmp_path / "s").exists()


def test_of_many_threads_that_begin_a_run_at_once_one_trains_it(store: FilesystemStore) -> None:
    ended: list[Any] = []
    start = threading.Barrier(8)

    def begin(number: int) -> None:
        start.wait(30)
        try:
            run = begin_run(store, "r", "torch", {"rate": str(number)})
            ended.append((number, train(run, 2)))
        except UsageError as error:
            ended.append((number, str(error)))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 8
    # However they met: nobody has an epoch of another one.
    for number, found in ended:
        assert isinstance(found, str) or found == [str(number)] * 2
    data = RunFolder(store, "r").load()
    if data is not None:
        assert len(set(json.loads(data)["history"])) == 1


# A fit is a list of steps; others come between any two of them.
Step = st.tuples(st.integers(0, 4), st.integers(0, 9))
FITS = st.lists(
    st.tuples(st.sampled_from(["r", "s", None]), st.sampled_from(["1", "2"]), st.integers(1, 3)),
    min_size=2,
    max_size=5,
)


class Fit:
    """A fit in a process of its own, one step at a time."""

    def __init__(self, store: FilesystemStore, name: str | None, rate: str, epochs: int) -> None:
        self.rate, self.epochs = rate, epochs
        self.history: list[str] | None = None
        self.refused = ""
        self._steps = self._run(store, name)

    def _run(self, store: FilesystemStore, name: str | None) -> Any:
        check_run(store, name, {"rate": self.rate})
        yield
        run = begin_run(store, name, "torch", {"rate": self.rate, "data.rows": "5"})
        yield
        for epoch in range(self.epochs + 1):
            history = train_one(run, epoch)
            yield
        self.history = history

    def step(self) -> bool:
        try:
            next(self._steps)
        except StopIteration:
            return False
        except UsageError as error:
            self.refused = str(error)
            return False
        return True


def train_one(run: RunFolder, epoch: int) -> list[str]:
    """At epoch 0 loads the checkpoint, as ranks do once; later adds an epoch if it lacks one."""
    if epoch == 0:
        data = run.load()
        _loaded[run.token] = []
        if data is not None:
            found = json.loads(data)
            run.check(found["run"])
            _loaded[run.token] = found["history"]
    history = _loaded[run.token]
    if epoch > len(history):
        history.append(run.description["rate"])
        run.save(json.dumps({"run": run.described(), "history": history}).encode())
    return history


_loaded: dict[str, list[str]] = {}


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(fits=FITS, order=st.lists(st.integers(0, 4), max_size=40), local=st.booleans())
def test_no_fit_ever_gets_the_model_of_another_one(
    tmp_path: Path, fits: list[Any], order: list[int], local: bool
) -> None:
    name = uuid.uuid4().hex
    store = FilesystemStore(str(tmp_path / name) if local else f"memory://{name}")
    running = [Fit(store, *each) for each in fits]
    left = list(running)
    for number in order:
        if left and not left[number % len(left)].step():
            left.pop(number % len(left))
    while left:
        left = [fit for fit in left if fit.step()]
    for fit, (run_id, rate, epochs) in zip(running, fits, strict=True):
        assert (fit.history is None) == bool(fit.refused)
        if run_id is None:
            assert fit.history == [rate] * epochs
        elif fit.history is not None:
            # All epochs are of this training, at least as many as asked for.
            assert fit.history == [rate] * max(epochs, len(fit.history))
        else:
            assert "run_id" in fit.refused
    for run_id in ("r", "s"):
        data, record = RunFolder(store, run_id).load(), runs._record(store, run_id)
        if data is not None and record is not None:
            # Of the fit that has the run, whoever else wanted to write.
            assert json.loads(json.loads(data)["run"]) == record["description"]
    if local:
        shutil.rmtree(tmp_path / name, ignore_errors=True)


def add(number: int) -> Callable[[int], int]:
    return lambda other: other + number


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Options:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._hidden = object()


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 2),
        (1, "1"),
        (None, False),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (b"a", b"b"),
        (len, print),
        (json, enum),
        (int, float),
        (add(1), add(2)),
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(add, 1), functools.partial(add, 2)),
        (Options(0.1), Options(0.2)),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        (Kind.ONE, Kind.TWO),
        ([{"a": 1}, 2], [{"a": 1}, 3]),
        (Options(0.1).__init__, Options(0.2).__init__),  # type: ignore[misc]
    ],
)
def test_descriptions_differ_where_values_do(value: Any, other: Any) -> None:
    assert flat("x", value) == flat("x", value)
    assert differences(flat("x", value), flat("x", other))
    assert not differences(flat("x", value), flat("x", value))


def test_a_description_is_the_same_in_every_process() -> None:
    program = (
        "from test_runs import Options, add, flat; import json, numpy as np;"
        "v = {'a': add(3), 'o': Options(0.5), 's': {'x', 'y', 'z'}, 'n': np.arange(4.0),"
        " 'i': lambda x: x in {'p', 'q', 'r'}};"
        "print(json.dumps(flat('v', v)))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert "0x" not in found[0]


def test_differences_name_both_values_and_how_many_more_there_are() -> None:
    before = {"a": "1", "b": "x" * 100, "c": "3", "d": "4", "same": "5"}
    now = {"a": "2", "b": "y", "d": "5", "e": "6", "same": "5"}
    assert differences(before, now) == (
        f"a was 1, and is 2; b was {'x' * 80}…, and is y; c was 3, and is not there; 2 more"
    )
    one, other = (f"[{'0, ' * 100}{number}]" for number in (1, 2))
    assert differences({"a": one}, {"a": other}) == (
        "a was …, 0, 0, 0, 0, 0, 0, 1], and is …, 0, 0, 0, 0, 0, 0, 2]"
    )
    groups = [flat("groups", [{"rate": rate, "decay": 0}]) for rate in (0.1, 0.2)]
    assert differences(*groups) == "groups[0].rate was 0.1, and is 0.2"
    assert described({"a": (1, 2.5)}) == {"a": [1, 2.5]}


def test_a_file_system_without_hard_links_has_one_writer_of_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: str) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", link)
    store = FilesystemStore(str(tmp_path))
    path = f"{store.get_run_path('r')}/run.json"
    assert [store.write_new(path, data) for data in (b"first", b"second")] == [True, False]
    assert store.read(path) == b"first"
