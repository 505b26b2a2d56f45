"""Whether a change of the map changes the picture there, and to what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import ndimage

from landscapes.judge.judges import look
from landscapes.palette import GRASS, SNOW

if TYPE_CHECKING:
    from landscapes.judge.evaluate import Subject

FEWEST = 0.1  # share of grass of a map that is used
NEAR = 4  # pixels from the changed region that count as neither inside nor outside
MOST = 64  # maps


def measure_local_control(subject: Subject) -> list[dict[str, Any]]:
    """Return two rows: change inside over change outside, and how much snow the judge sees inside.

    Grass of the left half of a map becomes snow. Return nothing if no map has enough grass.
    """
    labels, styles = subject.labels, subject.styles
    inside = labels == GRASS
    inside[:, :, labels.shape[2] // 2 :] = False
    chosen = np.flatnonzero(inside.mean((1, 2)) > FEWEST)[:MOST]
    if not len(chosen):
        return []
    inside, before = inside[chosen], subject.painted[chosen]
    changed = np.where(inside, SNOW, labels[chosen]).astype(np.uint8)
    after = subject.painter.paint(changed, styles[chosen.tolist()])
    outside = np.stack([~ndimage.binary_dilation(each, iterations=NEAR) for each in inside])
    difference = np.abs(after.astype(float) - before).mean(3)
    ratio = float(difference[inside].mean() / max(difference[outside].mean(), 1e-9))
    seen = [look(subject.judges, each).classes for each in (before, after)]
    shares = [float((each[inside] == SNOW).mean()) for each in seen]
    return [
        {
            "question": "local control?",
            "measure": "change inside over change outside, grass to snow",
            "value": round(ratio, 4),
            "controls": {"a change that is everywhere the same": 1.0},
            "better": "more",
            "beats_controls": ratio > 1,
        },
        {
            "question": "local control?",
            "measure": "share of snow that the judge sees there afterwards",
            "value": round(shares[1], 4),
            "controls": {"before": round(shares[0], 4)},
            "better": "more",
            "beats_controls": shares[1] > shares[0],
        },
    ]
