"""Photos with their label maps: checked in sentences, then imported as pairs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from landscapes import palette
from landscapes.cli import main
from landscapes.data import open_pairs
from landscapes.data.class_maps import load_map, shipped_maps
from landscapes.data.store import SPLITS
from landscapes.errors import LandscapesError
from landscapes.render import render_pair

if TYPE_CHECKING:
    from pathlib import Path


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
    assert "24 pairs have ids beyond the classes:" in out
    assert "has ids beyond the classes: 10 (" in out
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
        "photo5.png cannot be read as a label map",
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
