"""Runs of training: resumed, stopped in time, refused."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image

import horovod.torch as hvd
from horovod.testing import run_ranks
from landscapes.checkpoint import load_model, read_tensors
from landscapes.cli.train import parse_time_s
from landscapes.data.rendering import Plan, render_data_set
from landscapes.errors import LandscapesError
from landscapes.nets import encode_labels
from landscapes.nets.encoder import draw_styles
from landscapes.train import run as run_module
from landscapes.train.batches import Stream
from landscapes.train.run import train
from landscapes.train.saving import TRAINING
from landscapes.train.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from landscapes.data import Pairs


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> Settings:
    """Eight steps of two pictures on each rank."""
    return Settings(
        data, tmp_path / "run", "smoke32", batch=2, steps=8, guide_steps=4, print_every=4
    )


def on_ranks(count: int, settings: Settings) -> list[int]:
    def start() -> int:
        hvd.init()
        return train(settings)

    return run_ranks(count, start)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert on_ranks(2, settings) == [8, 8]
    assert re.search(
        r"step 8  \d+\.\d img/s  gan .*features .*discriminator", capfd.readouterr()[0]
    )
    halves = dataclasses.replace(settings, out=tmp_path / "halves")
    assert on_ranks(2, dataclasses.replace(halves, steps=5)) == [5, 5]
    assert on_ranks(2, dataclasses.replace(halves, resume=True)) == [8, 8]
    whole, resumed = (read_tensors(each.out / TRAINING) for each in (settings, halves))
    assert whole[0].keys() == resumed[0].keys()
    assert all(torch.equal(each, resumed[0][key]) for key, each in whole[0].items())
    assert whole[1] == resumed[1]
    # The model that paints, too, statistics included.
    assert load_model(settings.out).digest == load_model(halves.out).digest
    assert (settings.out / "sheets" / "step-000008.png").exists()


def test_a_run_goes_on_with_another_number_of_ranks(settings: Settings) -> None:
    on_ranks(1, dataclasses.replace(settings, steps=3))
    on_ranks(2, dataclasses.replace(settings, steps=5, resume=True))
    progress = read_tensors(settings.out / TRAINING)[1]["progress"]
    assert progress["step"] == 5
    assert progress["position"] == 3 * 2 + 2 * 4


def test_a_run_out_of_time_ends_after_a_checkpoint(settings: Settings) -> None:
    late = dataclasses.replace(settings, steps=10_000, budget_s=1e-3)
    assert on_ranks(2, late) == [1, 1]
    assert read_tensors(settings.out / TRAINING)[1]["progress"]["step"] == 1
    assert load_model(settings.out).config["step"] == 1


def test_the_statistics_of_the_average_are_those_of_its_own_features(
    settings: Settings, pairs: Pairs
) -> None:
    on_ranks(1, dataclasses.replace(settings, steps=20))
    model = load_model(settings.out)
    batch = Stream(pairs, 1, model.preset.z_dim).batch(0, 16)
    planes = encode_labels(batch.labels)
    with torch.no_grad():
        style = draw_styles(*model.encoder(batch.pictures), batch.noise)
        in_evaluation = model.generator(planes, style)
        in_training = model.generator.train()(planes, style)
    assert (in_evaluation - in_training).abs().mean() < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preset": "tiny64"}, "has pictures of 32 px, and tiny64 paints 64 px"),
        ({"preset": "huge"}, "There is no preset 'huge': name one of smoke32"),
        ({"resume": True}, "There is no .*training.safetensors"),
        ({"device": "cuda"}, "--device cuda needs a GPU"),
        ({"perceptual": "vgg19"}, "--perceptual vgg19 needs --vgg-weights FILE"),
    ],
)
def test_settings_that_cannot_be_honored_are_refused(
    settings: Settings, change: dict[str, Any], message: str
) -> None:
    if "device" in change and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LandscapesError, match=message):
        on_ranks(1, dataclasses.replace(settings, **change))


def test_a_folder_with_a_run_is_neither_overwritten_nor_mixed(settings: Settings) -> None:
    short = dataclasses.replace(settings, steps=1)
    on_ranks(1, short)
    with pytest.raises(LandscapesError, match="already holds a run: add --resume"):
        on_ranks(1, short)
    with pytest.raises(LandscapesError, match="is of a run with seed 1, and this one has 2"):
        on_ranks(1, dataclasses.replace(short, resume=True, seed=2))
    with pytest.raises(LandscapesError, match=r"run with by-hand 0\.0, and this one has 0\.5"):
        on_ranks(1, dataclasses.replace(short, resume=True, by_hand=0.5))


def test_two_runs_at_once_do_not_share_a_folder(settings: Settings) -> None:
    import fcntl

    settings.out.mkdir()
    with (settings.out / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LandscapesError, match="Another run is writing to"):
            on_ranks(1, settings)


def test_ranks_with_different_data_are_refused(settings: Settings, tmp_path: Path) -> None:
    render_data_set(Plan(tmp_path / "other", 20, 32, 4), 1, lambda _: None)
    other = dataclasses.replace(settings, data=tmp_path / "other")

    def start() -> None:
        hvd.init()
        train(settings if hvd.rank() == 0 else other)

    with pytest.raises(LandscapesError, match="The ranks read different data"):
        run_ranks(2, start)


def test_ranks_with_different_options_are_refused(settings: Settings) -> None:
    def start() -> None:
        hvd.init()
        train(dataclasses.replace(settings, batch=2 + hvd.rank()))

    with pytest.raises(LandscapesError, match=r"The ranks differ in --batch: \[2, 3\], by rank"):
        run_ranks(2, start)


def test_a_run_that_ended_while_another_began_is_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = run_module._prepare

    def prepare_slowly(late: Settings) -> Any:
        prepared = ready(late)
        settings.out.mkdir()
        (settings.out / TRAINING).write_bytes(b"of the other")
        return prepared

    monkeypatch.setattr(run_module, "_prepare", prepare_slowly)
    with pytest.raises(LandscapesError, match="already holds a run: add --resume"):
        on_ranks(1, settings)
    assert (settings.out / TRAINING).read_bytes() == b"of the other"


def test_a_full_disk_ends_training_with_a_sentence(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Image.Image, "save", refuse)
    with pytest.raises(LandscapesError, match=r"step-000001.png cannot be written: No space left"):
        on_ranks(1, dataclasses.replace(settings, steps=1))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("9m", 540), ("1.5h", 5400)]
)
def test_lengths_of_time_have_units(text: str, seconds: float) -> None:
    assert parse_time_s(text) == seconds


@pytest.mark.parametrize("text", ["0m", "-1s", "9 m", "1d", "m"])
def test_other_lengths_of_time_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time: give one such as 90s"):
        parse_time_s(text)
