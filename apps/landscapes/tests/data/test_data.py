"""Folders of pairs: rendered by one process or more, divided, opened, and refused if damaged."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from landscapes.cli import main
from landscapes.data import open_pairs
from landscapes.data.rendering import Plan, render_data_set
from landscapes.data.store import SPLITS, create_arrays, divide, writing
from landscapes.data.workers import spread
from landscapes.errors import LandscapesError
from landscapes.render import render_pair

if TYPE_CHECKING:
    from pathlib import Path

COUNT, SIZE = 24, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "data"
    render_data_set(Plan(path, COUNT, SIZE, 3), 1, lambda done: None)
    return path


def test_splits_hold_the_pairs_of_their_indices(folder: Path) -> None:
    seen = []
    for split in SPLITS:
        pairs = open_pairs(folder, split)
        for pair in pairs:
            expected = render_pair(3, pair.meta.index, SIZE)
            assert np.array_equal(pair.image, expected.image)
            assert np.array_equal(pair.labels, expected.labels)
            assert pair.meta == expected.meta
        seen += [meta.index for meta in pairs.metas]
    assert seen == list(range(COUNT))


def test_a_batch_is_the_pairs_in_the_order_asked_for(folder: Path) -> None:
    pairs = open_pairs(folder, "train")
    images, labels = pairs.batch([4, 0])
    assert np.array_equal(images, np.stack([pairs[4].image, pairs[0].image]))
    assert np.array_equal(labels, np.stack([pairs[4].labels, pairs[0].labels]))
    part = pairs[2:5]
    assert len(part) == 3
    assert np.array_equal(part[0].image, pairs[2].image)
    with pytest.raises(IndexError):
        pairs[len(pairs)]


def test_two_processes_render_what_one_renders(folder: Path, tmp_path: Path) -> None:
    done: list[int] = []
    render_data_set(Plan(tmp_path / "two", COUNT, SIZE, 3), 2, done.append)
    assert done[-1] == COUNT
    for name in ("images.npy", "labels.npy", "meta.jsonl", "data.json"):
        assert (tmp_path / "two" / name).read_bytes() == (folder / name).read_bytes()


def test_fingerprints_differ_between_data_sets(folder: Path, tmp_path: Path) -> None:
    render_data_set(Plan(tmp_path / "other", COUNT, SIZE, 4), 1, lambda done: None)
    mark = open_pairs(folder, "train").fingerprint
    assert mark == open_pairs(folder, "val").fingerprint
    assert mark != open_pairs(tmp_path / "other", "train").fingerprint


@pytest.mark.parametrize("count", [20, 21, 37, 100, 4000])
def test_splits_are_disjoint_and_none_is_empty(count: int) -> None:
    ranges = list(divide(count).values())
    assert ranges[0][0] == 0
    assert ranges[-1][1] == count
    assert all(start < end for start, end in ranges)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(LandscapesError, match="19 pairs cannot be divided"):
        divide(19)


def test_a_finished_folder_is_not_written_again(folder: Path) -> None:
    with pytest.raises(LandscapesError, match="already holds pairs"):
        render_data_set(Plan(folder, COUNT, SIZE, 3), 1, lambda done: None)


def try_to_write(folder: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        with writing(folder):
            answers.put("written")
    except LandscapesError as error:
        answers.put(str(error))


def test_two_writers_of_one_folder_exclude_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    with writing(tmp_path / "data"):
        other = context.Process(target=try_to_write, args=(tmp_path / "data", answers))
        other.start()
        assert "Another process is writing" in answers.get(timeout=60)
        other.join(60)
    try_to_write(tmp_path / "data", answers)
    assert answers.get(timeout=60) == "written"


def die(item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    with pytest.raises(LandscapesError, match="One of 2 worker processes was killed"):
        list(spread(die, range(4), 2))


def refuse(item: int) -> int:
    if item == 1:
        raise LandscapesError("one is refused")
    return item


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_worker_is_raised(workers: int) -> None:
    with pytest.raises(LandscapesError, match="one is refused"):
        list(spread(refuse, range(4), workers))


def test_what_a_killed_process_left_is_rendered_from_the_start(
    folder: Path, tmp_path: Path
) -> None:
    create_arrays(tmp_path, 30, 16)
    plan = Plan(tmp_path, COUNT, SIZE, 3)
    with pytest.raises(LandscapesError, match=r"images\.npy of something else"):
        render_data_set(plan, 1, lambda done: None)
    (tmp_path / "writing.lock").touch()
    render_data_set(plan, 1, lambda done: None)
    assert (tmp_path / "images.npy").read_bytes() == (folder / "images.npy").read_bytes()


def test_an_unfinished_folder_says_so(tmp_path: Path) -> None:
    create_arrays(tmp_path, 20, 16)
    with pytest.raises(LandscapesError, match=r"no finished data set: data\.json is missing"):
        open_pairs(tmp_path, "train")


def test_an_unknown_split_is_refused_with_the_names(folder: Path) -> None:
    with pytest.raises(LandscapesError, match="'test': name one of train, val, judge-train"):
        open_pairs(folder, "test")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("data.json", b"{", "cannot be understood"),
        ("data.json", b'{"format": 9}', "does not know"),
        ("meta.jsonl", b'{"source": "a", "index": 0}\n', "1 lines in meta.jsonl for 24 pairs"),
        ("meta.jsonl", b"[]\n", "cannot be understood"),
        ("labels.npy", b"\x93NUMPY", "cannot be read"),
        ("images.npy", b"", "cannot be read"),
    ],
)
def test_damaged_folders_say_what_is_wrong(
    folder: Path, tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    for file in ("data.json", "meta.jsonl", "labels.npy", "images.npy"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LandscapesError, match=expected):
        open_pairs(tmp_path, "train")


def test_pairs_of_another_renderer_are_named(folder: Path, tmp_path: Path) -> None:
    for file in ("meta.jsonl", "labels.npy", "images.npy"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    text = (folder / "data.json").read_text().replace("landscapes-v2", "landscapes-v0")
    (tmp_path / "data.json").write_text(text)
    with pytest.warns(UserWarning, match="rendered by landscapes-v0, and this version renders"):
        open_pairs(tmp_path, "train")


def test_arrays_of_another_shape_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in ("data.json", "meta.jsonl", "images.npy"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    np.save(tmp_path / "labels.npy", np.zeros((COUNT, 8, 8), np.uint8))
    with pytest.raises(LandscapesError, match=r"labels.npy has the shape \(24, 8, 8\)"):
        open_pairs(tmp_path, "train")


def test_the_command_renders_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    words = ["render", "--out", str(out), "--count", "20", "--size", "16", "--workers", "1"]
    assert main([*words, "--folders"]) == 0
    assert "landscapes-v2-16px-20-seed1: 20 pairs" in capsys.readouterr().out
    assert main(["data", "check", str(out)]) == 0
    assert "train: 14 pairs of 16 pixels." in capsys.readouterr().out
    first = Image.open(out / "labels/000000.png")
    assert np.array_equal(np.asarray(first), open_pairs(out, "train")[0].labels)
    assert main(words) == 2
    assert "already holds pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--size", "8"], "--size is 8"),
        (["--count", "3"], "3 pairs cannot be divided"),
        (["--seed", "-1"], "--seed is -1"),
        (["--workers", "0"], "--workers is 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["render", "--out", str(tmp_path / "data"), *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
