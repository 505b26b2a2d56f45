"""``landscapes synth`` and ``landscapes export`` as they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from landscapes.cli import main
from landscapes.palette import GRASS, SKY, paint_labels
from landscapes.photos import read_photo
from landscapes.sketch import fit_labels, read_sketch

if TYPE_CHECKING:
    from pathlib import Path

    from landscapes.studio import Studio


@pytest.fixture
def drawing(tmp_path: Path) -> Path:
    """A map in the colors of the palette, twice as large as the network paints."""
    labels = np.full((128, 128), GRASS, np.uint8)
    labels[:60] = SKY
    path = tmp_path / "drawing.png"
    Image.fromarray(paint_labels(labels)).save(path)
    return path


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_a_style_by_name(drawing: Path, tmp_path: Path, studio: Studio) -> None:
    out = tmp_path / "out"
    assert main(["synth", f"--labels={drawing}", "--style-id=winter-dawn", f"--out={out}"]) == 0
    assert sorted(each.name for each in out.iterdir()) == ["0.png", "map.png"]
    labels = np.full((128, 128), GRASS, np.uint8)
    labels[:60] = SKY
    expected = studio.paint(fit_labels(labels, studio.network.size), studio.styles["winter-dawn"])
    assert np.array_equal(read(out / "0.png"), expected)


def test_the_style_of_a_photo_and_variations_of_it(
    drawing: Path, tmp_path: Path, studio: Studio
) -> None:
    photo = tmp_path / "dusk.jpg"
    Image.new("RGB", (80, 80), (200, 90, 60)).save(photo)
    out = tmp_path / "out"
    words = ["synth", f"--labels={drawing}", f"--style={photo}", "--n=3", f"--out={out}"]
    assert main(words) == 0
    first, *others = (read(out / f"{number}.png").astype(int) for number in range(3))
    labels = fit_labels(read_sketch(drawing).labels, studio.network.size)
    assert np.array_equal(first, studio.paint(labels, studio.encode(read_photo(photo))))
    for each in others:
        assert 0 < np.abs(each - first).mean() < 100


def test_seeds_are_honored(drawing: Path, tmp_path: Path) -> None:
    for name, seed in {"a": 7, "b": 7, "c": 8}.items():
        out = tmp_path / name
        words = ["synth", f"--labels={drawing}", f"--seed={seed}", "--n=2", f"--out={out}"]
        assert main(words) == 0
    pictures = {each: read(tmp_path / each / "0.png") for each in "abc"}
    assert np.array_equal(pictures["a"], pictures["b"])
    assert not np.array_equal(pictures["a"], pictures["c"])
    assert np.array_equal(read(tmp_path / "a" / "1.png"), pictures["c"])  # the next seed


def test_a_page_shows_all_pictures_and_loads_nothing(drawing: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["synth", f"--labels={drawing}", "--seed=1", "--n=2", "--html", f"--out={out}"]
    assert main(words) == 0
    page = (out / "index.html").read_text()
    assert page.count("<img") == 3
    assert "http" not in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--n=0"], "--n 0: ask for 1 to 64 pictures"),
        (["--seed=-1"], "--seed -1: a seed is 0 or more"),
        (["--variation=nan"], "--variation nan: name a number"),
        (["--style-id=spring-dawn"], "There is no style 'spring-dawn'"),
        (["--style=no.jpg"], "no.jpg cannot be read: No such file"),
        (["--checkpoint=nowhere"], "nowhere"),
    ],
)
def test_wrong_arguments_get_a_sentence(
    drawing: Path,
    tmp_path: Path,
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert main(["synth", f"--labels={drawing}", f"--out={out}", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_an_image_that_is_no_map_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (32, 32), (255, 0, 255)).save(photo)
    assert main(["synth", f"--labels={photo}", f"--out={tmp_path / 'out'}"]) == 2
    assert "100.0% of" in capsys.readouterr().err


def test_export_says_how_far_the_models_are_from_pytorch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", f"--onnx={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "generator.onnx differs from PyTorch by" in printed
    assert (tmp_path / "generator.onnx").stat().st_size > 100_000
    assert (tmp_path / "encoder.onnx").is_file()


def test_export_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export"]) == 2
    assert "--onnx FOLDER, --site FOLDER, or both" in capsys.readouterr().err


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", f"--port={port}"]) == 2
    assert f"Port {port} cannot be used" in capsys.readouterr().err
    assert main(["serve", "--port=99999"]) == 2
    assert "Port 99999 cannot be used" in capsys.readouterr().err
