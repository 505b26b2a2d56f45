"""What judges measure: on arrays with known answers, and on a model that has learned nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from landscapes.checkpoint import random_model, save_model
from landscapes.cli import main
from landscapes.data.rendering import Plan, render_data_set
from landscapes.judge import controls
from landscapes.judge.measures import (
    agreement,
    choices,
    class_colors,
    frechet_distance,
    kernel_distance,
    roughness,
    to_lab,
)
from landscapes.pair import Meta
from landscapes.train.segmenting import biomes_of, hours_of

if TYPE_CHECKING:
    from pathlib import Path

    from landscapes.data import Pairs


def test_agreement_is_over_the_classes_that_are_given_and_known_pixels() -> None:
    given = np.array([[[0, 0, 1, 255]]], np.uint8)
    seen = np.array([[[0, 1, 1, 5]]], np.uint8)
    found = agreement(seen, given)
    assert found.miou == pytest.approx(0.5)  # 1 of 2 and 1 of 2
    assert found.accuracy == pytest.approx(2 / 3)
    assert np.isnan(found.by_class[2:]).all()


def test_the_frechet_distance_of_normal_features_is_that_of_their_moments() -> None:
    drawn = np.random.default_rng(0)
    one = drawn.standard_normal((40_000, 2))
    other = drawn.standard_normal((40_000, 2)) * [2.0, 1.0] + [0.0, 3.0]
    # 3² of the means, (2 - 1)² of the spreads
    assert frechet_distance(one, other) == pytest.approx(10, rel=0.03)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-6)


def test_the_kernel_distance_is_unbiased() -> None:
    drawn = np.random.default_rng(0)
    same = [
        kernel_distance(drawn.standard_normal((50, 4)), drawn.standard_normal((50, 4)))
        for _ in range(200)
    ]
    assert abs(np.mean(same)) < 3 * np.std(same) / len(same) ** 0.5
    apart = kernel_distance(drawn.standard_normal((50, 4)), drawn.standard_normal((50, 4)) + 1)
    assert apart > 5 * np.std(same)


def test_lab_of_known_colors() -> None:
    found = to_lab(np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0]], np.uint8))
    np.testing.assert_allclose(found, [[100, 0, 0], [0, 0, 0], [53.2, 80.1, 67.2]], atol=0.2)


def test_choices_compare_shared_classes_alone() -> None:
    nothing = np.full((9, 3), np.nan)
    painted, own, other = (np.stack([nothing] * 2) for _ in range(3))
    painted[0, 3], own[0, 3], other[0, 3] = 50, 52, 60
    painted[0, 4], other[0, 4] = 0, 0  # absent from its own reference
    assert choices(painted, own, other).tolist() == [True]


def test_class_colors_of_a_flat_painting_are_its_colors(pairs: Pairs) -> None:
    labels = np.array(pairs.labels[:3])
    colors = controls.mean_colors(pairs)
    flat = controls.paint_flat(labels, colors)
    found = class_colors(flat, labels)
    expected = np.broadcast_to(to_lab(colors), found.shape)
    present = ~np.isnan(found)
    np.testing.assert_allclose(found[present], expected[present])
    assert np.nanmax(roughness(flat, labels)) == 0
    assert np.nanmin(roughness(pairs.images[:3], labels)) > 0


def test_shuffled_pixels_stay_in_their_class(pairs: Pairs) -> None:
    images, labels = np.array(pairs.images[:2]), np.array(pairs.labels[:2])
    shuffled = controls.shuffle_pixels(images, labels)
    assert (shuffled != images).any()
    np.testing.assert_allclose(class_colors(shuffled, labels), class_colors(images, labels))


def test_disturbed_maps_are_mostly_the_same(pairs: Pairs) -> None:
    labels = np.array(pairs.labels[:8])
    same = (controls.disturb(labels) == labels).mean()
    assert 0.7 < same < 0.99


def test_hours_are_named_by_the_nearest_one_around_midnight_too() -> None:
    metas = [Meta("x", 0, hour=hour, biome="winter") for hour in (5.0, 12.0, 0.5, 20.0)]
    assert hours_of([*metas, Meta("photo", 4)]).tolist() == [0, 2, 4, 3, -100]
    assert biomes_of([*metas[:1], Meta("photo", 4)]).tolist() == [2, -100]


def test_a_report_has_all_questions_and_says_what_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    render_data_set(Plan(tmp_path / "data", 270, 32, 9), 2, lambda _: None)
    model = random_model("smoke32", 3)
    save_model(
        tmp_path / "run",
        {"generator": model.generator, "encoder": model.encoder},
        {"preset": "smoke32", "step": 0},
    )
    words = ["eval", "--checkpoint", str(tmp_path / "run"), "--data", str(tmp_path / "data")]
    words += ["--report", str(tmp_path / "report.json"), "--judge-steps", "10"]
    assert main(words) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pairs"] == 16
    questions = [each["question"] for each in report["rows"]]
    assert list(dict.fromkeys(questions)) == [
        "does the judge see?",
        "labels obeyed?",
        "looks real?",
        "style followed?",
        "local control?",
        "variety?",
    ]
    assert all(row["controls"] for row in report["rows"])
    distance = next(row for row in report["rows"] if row["measure"].startswith("Fréchet"))
    assert not distance["beats_controls"]
    assert "LOSES TO A CONTROL" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 12 * 6
    assert "http" not in page


def test_too_few_pairs_are_refused_before_judges_train(data: Path, tmp_path: Path) -> None:
    model = random_model("smoke32", 3)
    save_model(
        tmp_path,
        {"generator": model.generator, "encoder": model.encoder},
        {"preset": "smoke32", "step": 0},
    )
    words = ["--checkpoint", str(tmp_path), "--data", str(data)]
    assert main(["eval", *words, "--report", str(tmp_path / "report.json")]) == 2
    assert not (data / "judges").exists()
