"""Data sets: folders of pairs, and photos with their label maps, checked before training."""

from __future__ import annotations

import json
import multiprocessing
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from landscapes import palette
from landscapes.cli import main
from landscapes.data import open_pairs
from landscapes.data.class_maps import load_map, shipped_maps
from landscapes.data.rendering import Plan, render_data_set
from landscapes.data.store import SPLITS, create_arrays, divide, writing
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
    assert "landscapes-v1-16px-20-seed1: 20 pairs" in capsys.readouterr().out
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


# ---- Photos


def make_photos(
    root: Path, images: str, labels: str, count: int = 24, first: int = 0
) -> list[np.ndarray]:
    """Write ``count`` photos as JPEG and their label maps as gray PNG, and return the latter."""
    (root / images).mkdir(parents=True, exist_ok=True)
    (root / labels).mkdir(parents=True, exist_ok=True)
    maps = []
    for index in range(first, first + count):
        pair = render_pair(9, index % 4, 32)
        Image.fromarray(pair.image).save(root / images / f"photo{index}.jpg", quality=95)
        Image.fromarray(pair.labels).save(root / labels / f"photo{index}.png")
        maps.append(pair.labels)
    return maps


LAYOUTS = [("images", "labels"), ("images", "seg_maps"), ("train_img", "train_label")]


def data_command(*words: object) -> int:
    return main(["data", *map(str, words), "--workers", "1"])


@pytest.mark.parametrize("names", LAYOUTS)
def test_photos_become_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, str]
) -> None:
    maps = make_photos(tmp_path, *names)
    out = tmp_path / "out"
    assert data_command("check", tmp_path) == 0
    assert data_command("import", tmp_path, "--out", out, "--size", 32) == 0
    assert "24 pairs, of which 24 are good" in capsys.readouterr().out
    assert sum(len(open_pairs(out, split)) for split in SPLITS) == 24
    for pair in open_pairs(out, "train"):
        number = int(pair.meta.source.rpartition("photo")[2].removesuffix(".jpg"))
        assert np.array_equal(pair.labels, maps[number])
        assert np.abs(pair.image.astype(int) - render_pair(9, number % 4, 32).image).mean() < 6
        assert pair.meta.hour is None


def test_parts_of_a_data_set_stay_apart(tmp_path: Path) -> None:
    make_photos(tmp_path, "images/training", "annotations/training", 20)
    make_photos(tmp_path, "images/validation", "annotations/validation", 4, first=50)
    out = tmp_path / "out"
    assert data_command("import", tmp_path, "--out", out, "--size", 16) == 0
    sources = {split: {meta.source for meta in open_pairs(out, split).metas} for split in SPLITS}
    assert {split: len(each) for split, each in sources.items()} == {
        "train": 16,
        "val": 2,
        "judge-train": 4,
        "judge-val": 2,
    }
    for split, each in sources.items():
        part = "validation" if split.endswith("val") else "training"
        assert all(part in source for source in each)


def test_folders_may_be_named_as_in_other_tools(tmp_path: Path) -> None:
    make_photos(tmp_path, "a", "b")
    named = ("--image_dir", tmp_path / "a", "--label_dir", tmp_path / "b")
    assert data_command("check", *named) == 0
    assert data_command("check", "--images", tmp_path / "a") == 2


def test_other_ids_need_a_mapping_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_photos(tmp_path, "images", "labels")
    for path in (tmp_path / "labels").iterdir():
        labels = np.asarray(Image.open(path))
        Image.fromarray(np.where(labels == palette.SKY, 3, 10).astype(np.uint8)).save(path)
    assert data_command("check", tmp_path) == 1
    out = capsys.readouterr().out
    assert "24 pairs have ids that are no class:" in out
    assert "has ids that are no class: 10 (" in out
    assert "and 19 more" in out
    assert data_command("import", tmp_path, "--out", tmp_path / "out") == 2
    assert "24 pairs have problems" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert data_command("import", tmp_path, "--out", tmp_path / "out", "--map", "ade20k") == 0
    labels = open_pairs(tmp_path / "out", "train").labels
    assert set(np.unique(labels)) == {palette.SKY, palette.GRASS}
    assert "No pixel is water or trees or" in capsys.readouterr().out


def break_photos(root: Path) -> None:
    (root / "images/photo0.jpg").write_bytes(b"no photo")
    Image.new("L", (32, 20)).save(root / "labels/photo1.png")
    Image.new("L", (32, 32), 255).save(root / "labels/photo2.png")
    (root / "labels/photo3.png").unlink()
    (root / "images/photo4.jpg").unlink()
    content = (root / "labels/photo5.png").read_bytes()
    (root / "labels/photo5.png").write_bytes(content[: len(content) // 2])


def test_every_problem_is_named_and_can_be_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_photos(tmp_path, "images", "labels", 30)
    break_photos(tmp_path)
    assert data_command("check", tmp_path) == 1
    out = capsys.readouterr().out
    for expected in (
        "28 pairs, of which 24 are good",
        "1 photos have no label map:",
        "1 label maps have no photo:",
        "photo0.jpg is no image that can be read",
        "photo5.png is no label map that can be read",
        "photo1.png is 32 x 20, and photo1.jpg 32 x 32.",
        "photo2.png is 100% unknown.",
    ):
        assert expected in out
    assert data_command("import", tmp_path, "--out", tmp_path / "out", "--skip-bad") == 0
    assert json.loads((tmp_path / "out/data.json").read_text())["count"] == 24


def test_photos_alone_say_how_to_make_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.jpg")
    assert data_command("check", tmp_path) == 2
    assert "make them with `landscapes label`" in capsys.readouterr().err
    assert data_command("check", tmp_path / "none") == 2
    assert "There is no folder" in capsys.readouterr().err


def test_unknown_pixels_follow_their_neighbors_and_photos_are_cropped(tmp_path: Path) -> None:
    labels = np.full((32, 48), palette.GRASS, np.uint8)
    labels[:, 24:] = palette.WATER
    labels[10:14, 12:20] = palette.UNKNOWN
    make_photos(tmp_path, "images", "labels", 24)
    for index in range(24):
        Image.fromarray(labels).save(tmp_path / f"labels/photo{index}.png")
        Image.new("RGB", (96, 64), "green").save(tmp_path / f"images/photo{index}.jpg")
    assert data_command("import", tmp_path, "--out", tmp_path / "out", "--size", 16) == 0
    read = open_pairs(tmp_path / "out", "val")[0].labels
    assert (read[:, :8] == palette.GRASS).all()
    assert (read[:, 8:] == palette.WATER).all()


@pytest.mark.parametrize("name", shipped_maps())
def test_shipped_maps_know_the_classes(name: str) -> None:
    table = load_map(name)
    known = {palette.NAMES[each] for each in np.unique(table[table != palette.UNKNOWN])}
    assert known >= {"sky", "water", "trees", "grass", "stones", "mountains", "road", "river"}
    assert table[255] == palette.UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "cannot be understood"),
        ('{"values": {"3": "lava"}}', "'lava'"),
        ('{"values": {"300": "sky"}}', "300 is no gray value"),
        ("[]", "cannot be understood"),
    ],
)
def test_wrong_mapping_files_say_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(LandscapesError, match=expected):
        load_map(str(path))
    with pytest.raises(LandscapesError, match="give a path, or one of ade20k, coco-stuff"):
        load_map("cityscapes")
