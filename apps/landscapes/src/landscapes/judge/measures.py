"""Numbers over maps, features and colors; pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from landscapes.palette import CLASSES, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Agreement:
    """How well seen maps agree with given ones.

    ``miou`` is the mean over the classes that are given anywhere; ``by_class`` has NaN for others;
    ``accuracy`` is the share of pixels.
    """

    miou: float
    accuracy: float
    by_class: NDArray[np.float64]


def agreement(seen: NDArray[np.uint8], given: NDArray[np.uint8]) -> Agreement:
    """Compare maps (N, h, w); pixels of unknown class are left out."""
    count = len(CLASSES)
    known = given < count
    pairs = given[known].astype(np.int64) * count + seen[known]
    confusion = np.bincount(pairs, minlength=count * count).reshape(count, count)
    hits = np.diag(confusion).astype(np.float64)
    union = confusion.sum(0) + confusion.sum(1) - hits
    is_given = confusion.sum(1) > 0
    by_class = np.where(is_given, hits / np.maximum(union, 1), np.nan)
    return Agreement(float(np.nanmean(by_class)), float(hits.sum() / confusion.sum()), by_class)


def frechet_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the Fréchet distance of two sets of features (N, f), taken as normal."""
    means = one.mean(0) - other.mean(0)
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    # The eigenvalues of a product of two covariances are real and not negative.
    roots = np.sqrt(np.maximum(linalg.eigvals(first @ second).real, 0))
    return float(means @ means + np.trace(first) + np.trace(second) - 2 * roots.sum())


def kernel_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the squared kernel distance (KID) of features (N, f); it may be below 0."""
    features = one.shape[1]

    def kernel(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = (a @ b.T / features + 1) ** 3
        return values

    def mean_within(a: NDArray[np.float64]) -> float:
        values = kernel(a, a)
        return float((values.sum() - np.trace(values)) / (len(a) * (len(a) - 1)))

    return mean_within(one) + mean_within(other) - 2 * float(kernel(one, other).mean())


def to_lab(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return sRGB images (..., 3) in CIE Lab (D65)."""
    share = images.astype(np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    matrix = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = linear @ matrix.T / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = root[..., 0], root[..., 1], root[..., 2]
    return np.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), axis=-1)


def class_colors(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the mean Lab color of each class of each image: (N, 9, 3), NaN where it is absent."""
    lab = to_lab(images)
    colors = np.full((len(images), len(CLASSES), 3), np.nan)
    for number in range(len(images)):
        for each in np.unique(labels[number]):
            if each < len(CLASSES):
                colors[number, each] = lab[number][labels[number] == each].mean(0)
    return colors


def choices(
    painted: NDArray[np.float64], own: NDArray[np.float64], other: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return for each picture whether its class colors are nearer to ``own`` than to ``other``.

    All are (N, 9, 3). Only classes that all three have are compared; pictures without one are left
    out.
    """
    to_own = np.linalg.norm(painted - own, axis=2)
    to_other = np.linalg.norm(painted - other, axis=2)
    shared = ~np.isnan(to_own) & ~np.isnan(to_other)
    usable = shared.any(1)
    sums = [np.where(shared, each, 0).sum(1) for each in (to_own, to_other)]
    nearer: NDArray[np.bool_] = (sums[0] < sums[1])[usable]
    return nearer


def roughness(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return for each class the mean difference of a pixel's lightness from its four neighbors.

    Only pixels whose neighbors are of the same class count; NaN where a class has none.
    """
    light = images.astype(np.float64).mean(3)
    steps = [(step, axis) for axis in (1, 2) for step in (-1, 1)]
    around = np.mean([np.roll(light, *each) for each in steps], axis=0)
    is_inner = np.all([np.roll(labels, *each) == labels for each in steps], axis=0)
    apart = np.abs(light - around)[:, 1:-1, 1:-1]
    inner = np.where(is_inner, labels, UNKNOWN)[:, 1:-1, 1:-1]
    return np.array(
        [
            apart[inner == each].mean() if (inner == each).any() else np.nan
            for each in range(len(CLASSES))
        ]
    )
