"""The questions that a report answers, each beside controls that must lose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from landscapes.checkpoint import random_model
from landscapes.data import open_pairs
from landscapes.errors import LandscapesError
from landscapes.judge import controls
from landscapes.judge.judges import look, train_judges
from landscapes.judge.local import measure_local_control
from landscapes.judge.measures import (
    agreement,
    choices,
    class_colors,
    frechet_distance,
    kernel_distance,
    roughness,
    to_lab,
)
from landscapes.judge.painting import Painter
from landscapes.palette import NAMES
from landscapes.train.segmenting import hours_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from landscapes.checkpoint import Model
    from landscapes.judge.judges import Judges, Seen

Row = dict[str, Any]
FEWEST_PAIRS = 16
OTHER, THIRD = 1, 7  # how far away the pairs are that lend a style, and that are compared


@dataclass(frozen=True)
class Subject:
    """What is judged: pairs that no network has seen, and what was painted of their maps.

    ``painted`` has the style of the pair ``OTHER`` further on, so no picture was painted from its
    own original.
    """

    painter: Painter
    judges: Judges
    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    hours: NDArray[np.int64]
    styles: torch.Tensor
    painted: NDArray[np.uint8]
    flat: NDArray[np.uint8]
    untrained: NDArray[np.uint8]
    of_real: Seen
    of_painted: Seen


def prepare(
    model: Model, data: Path, count: int, judge_steps: int, device: torch.device | str = "cpu"
) -> Subject:
    """Paint the first ``count`` pairs of the split judge-val; train the judges if need be.

    The networks compute on ``device``, to which ``model`` moves.
    """
    pairs = open_pairs(data, "judge-val")[:count]
    if len(pairs) < FEWEST_PAIRS:
        raise LandscapesError(
            f"The split judge-val of {data} has {len(pairs)} pairs, and a report needs "
            f"{FEWEST_PAIRS}: render more."
        )
    judges = train_judges(data, judge_steps, device)
    images, labels = np.array(pairs.images), np.array(pairs.labels)
    untrained_model = random_model(model.preset.name, 1)
    for each in (model, untrained_model):
        each.generator.to(device)
        each.encoder.to(device)
    painter, beginner = Painter(model), Painter(untrained_model)
    styles = painter.styles_of(np.roll(images, -OTHER, 0))
    painted = painter.paint(labels, styles)
    flat = controls.paint_flat(labels, controls.mean_colors(open_pairs(data, "train")))
    untrained = beginner.paint(labels, beginner.styles_of(np.roll(images, -OTHER, 0)))
    seen = look(judges, images), look(judges, painted)
    hours = hours_of(pairs.metas)
    return Subject(painter, judges, images, labels, hours, styles, painted, flat, untrained, *seen)


def measure(subject: Subject) -> list[Row]:
    """Return all rows of the report; each has a question, a measure, a value and controls."""
    return [
        *_labels(subject),
        *_realism(subject),
        *_style(subject),
        *measure_local_control(subject),
        _variety(subject),
    ]


def _row(
    question: str, measure: str, value: float, controls: dict[str, float], *, more: bool = True
) -> Row:
    """Return a row; ``more`` says whether more is better than the controls."""
    beaten = all((value > each) is more for each in controls.values())
    return {
        "question": question,
        "measure": measure,
        "value": round(value, 4),
        "controls": {name: round(each, 4) for name, each in controls.items()},
        "better": "more" if more else "less",
        "beats_controls": beaten,
    }


def _labels(subject: Subject) -> list[Row]:
    labels, judges = subject.labels, subject.judges
    real = agreement(subject.of_real.classes, labels)
    painted = agreement(subject.of_painted.classes, labels)
    wrong = agreement(subject.of_painted.classes, np.roll(labels, THIRD, 0))
    untrained = agreement(look(judges, subject.untrained).classes, labels)
    flat = agreement(look(judges, subject.flat).classes, labels)
    rough = controls.disturb(labels)
    of_rough = look(judges, subject.painter.paint(rough, subject.styles)).classes
    must_lose = {"scored against other maps": wrong.miou, "untrained generator": untrained.miou}
    main = _row("labels obeyed?", "mIoU of the judge on painted", painted.miou, must_lose)
    main["by_class"] = {
        name: None if np.isnan(value) else round(float(value), 4)
        for name, value in zip(NAMES, painted.by_class, strict=True)
    }
    main["for comparison"] = {
        "real": round(real.miou, 4),
        "ratio to real": round(painted.miou / real.miou, 4),
        "flat painter, which may score high": round(flat.miou, 4),
        "pixel accuracy": round(painted.accuracy, 4),
        "pixel accuracy on real": round(real.accuracy, 4),
    }
    judge = _row(
        "does the judge see?",
        "mIoU of the judge on real",
        real.miou,
        {
            "scored against other maps": agreement(
                subject.of_real.classes, np.roll(labels, THIRD, 0)
            ).miou
        },
    )
    drawn = agreement(of_rough, rough).miou
    against_wrong = agreement(of_rough, np.roll(rough, THIRD, 0)).miou
    hand = _row(
        "labels obeyed?",
        "mIoU on maps disturbed like a hand sketch",
        drawn,
        {"scored against other maps": against_wrong},
    )
    return [judge, main, hand]


def _realism(subject: Subject) -> list[Row]:
    real = subject.of_real.pooled
    half = len(real) // 2
    fakes = {
        "flat painter": subject.flat,
        "blurred real": controls.blur(subject.images),
        "real, shuffled within classes": controls.shuffle_pixels(subject.images, subject.labels),
        "untrained generator": subject.untrained,
    }
    pooled = {name: look(subject.judges, each).pooled for name, each in fakes.items()}
    rows = []
    for name, distance in (("Fréchet", frechet_distance), ("kernel (KID)", kernel_distance)):
        lose = {each: distance(features, real) for each, features in pooled.items()}
        value = distance(subject.of_painted.pooled, real)
        row = _row("looks real?", f"{name} distance in judge features", value, lose, more=False)
        # Of halves: with half as many pictures, so that the floor is a high one.
        row["for comparison"] = {
            "floor, real halves": round(distance(real[:half], real[half:]), 4),
            "ratio to flat painter": round(value / lose["flat painter"], 4),
        }
        rows.append(row)
    return [*rows, _texture(subject)]


def _texture(subject: Subject) -> Row:
    real = roughness(subject.images, subject.labels)

    def apart(images: NDArray[np.uint8]) -> float:
        found = roughness(images, subject.labels)
        return float(np.nanmean(np.abs(np.log((found + 0.1) / (real + 0.1)))))

    lose = {
        "flat painter": apart(subject.flat),
        "blurred real": apart(controls.blur(subject.images)),
    }
    measure = "log ratio of roughness to real, mean over classes"
    return _row("looks real?", measure, apart(subject.painted), lose, more=False)


def _style(subject: Subject) -> list[Row]:
    colors = class_colors(subject.painted, subject.labels)
    of_real = class_colors(subject.images, subject.labels)
    own, other = np.roll(of_real, -OTHER, 0), np.roll(of_real, -THIRD, 0)
    chosen = choices(colors, own, other)
    shuffled = choices(colors, np.roll(of_real, -3, 0), other)
    rows = [
        _row(
            "style followed?",
            "class colors nearer to the own reference than to another (2AFC)",
            float(chosen.mean()),
            {"references shuffled": float(shuffled.mean())},
        )
    ]
    wanted = np.roll(subject.hours, -OTHER, 0)
    hit = float((subject.of_painted.hours == wanted).mean())
    chance = float((subject.of_painted.hours == np.roll(subject.hours, -THIRD, 0)).mean())
    row = _row(
        "style followed?",
        "hour that the judge sees is that of the reference",
        hit,
        {"references shuffled": chance},
    )
    row["for comparison"] = {
        "real": round(float((subject.of_real.hours == subject.hours).mean()), 4)
    }
    light = to_lab(subject.painted)[..., 0].mean((1, 2))
    of_reference = to_lab(subject.images)[..., 0].mean((1, 2))
    correlations = [
        float(np.corrcoef(light, np.roll(of_reference, -each))[0, 1]) for each in (OTHER, THIRD)
    ]
    measure = "correlation of mean lightness with the reference"
    bright = _row(
        "style followed?", measure, correlations[0], {"references shuffled": correlations[1]}
    )
    return [*rows, row, bright]


def _variety(subject: Subject) -> Row:
    maps = subject.labels[:16].repeat(4, 0)
    drawn = torch.randn(
        len(maps), subject.styles.shape[1], generator=torch.Generator().manual_seed(0)
    )
    features = look(subject.judges, subject.painter.paint(maps, drawn)).pooled
    groups = features.reshape(16, 4, -1)
    within = float(np.linalg.norm(groups - np.roll(groups, 1, 1), axis=2).mean())
    real = subject.of_real.pooled
    between = float(np.linalg.norm(real - np.roll(real, 1, 0), axis=1).mean())
    row = _row(
        "variety?", "feature distance of random styles of one map", within, {"style ignored": 0.0}
    )
    row["for comparison"] = {"between real scenes": round(between, 4)}
    return row
