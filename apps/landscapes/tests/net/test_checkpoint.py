"""Files of models: written whole or not at all, read without trust."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from landscapes.checkpoint import (
    load_generator,
    load_model,
    random_model,
    read_tensors,
    save_model,
    write_file,
    write_tensors,
)
from landscapes.errors import LandscapesError
from landscapes.nets import encode_labels

if TYPE_CHECKING:
    from pathlib import Path

    from landscapes.checkpoint import Model


def save(model: Model, folder: Path) -> None:
    parts = {"generator": model.generator, "encoder": model.encoder, "segmenter": model.segmenter}
    save_model(folder, parts, {"preset": model.preset.name, "segmenter": 8, "step": 3})


def test_a_model_paints_the_same_after_a_trip_through_its_file(tmp_path: Path) -> None:
    model = random_model("smoke32", 4)
    save(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config["step"] == 3
    assert loaded.segmenter is not None
    inputs = encode_labels(torch.randint(0, 9, (2, 32, 32))), torch.randn(2, 16)
    painted, expected = loaded.generator(*inputs), model.generator(*inputs)
    assert (painted - expected).abs().max() < 0.05  # bfloat16 has 8 bits
    assert torch.equal(load_generator(tmp_path / "model.safetensors")(*inputs), painted)
    assert json.loads((tmp_path / "config.json").read_text()) == loaded.config


def test_equal_weights_have_equal_digests_and_others_do_not(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((1, 1, 2)):
        save(random_model("smoke32", seed), tmp_path / str(number))
        digests.append(load_model(tmp_path / str(number)).digest)
    assert digests[0] == digests[1] != digests[2]


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LandscapesError, match=r"There is no .*name the folder"):
        load_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x80\x04pickle" * 9)
    with pytest.raises(LandscapesError, match=r"cannot be read .*damaged"):
        load_model(tmp_path)
    save(random_model("smoke32", 1), tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LandscapesError, match=r"cannot be read .*damaged"):
        load_model(tmp_path)
    write_tensors(file, {"x": torch.zeros(1)}, {"config": {"format": 99}})
    with pytest.raises(LandscapesError, match="has the format 99, and this version reads 1"):
        load_model(tmp_path)
    write_tensors(file, {"x": torch.zeros(1)}, {"config": {"format": 1, "preset": "smoke32"}})
    with pytest.raises(LandscapesError, match=r"The generator in .* does not fit"):
        load_model(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    write_tensors(file, {"x": torch.ones(2)}, {"step": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(LandscapesError, match="cannot be written: No space left"):
        write_file(file, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
    assert read_tensors(file)[1] == {"step": 1}
