"""The renderer: pairs that can be made again alone, light by hour, and shares of classes."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from scipy import ndimage

from landscapes import palette
from landscapes.pair import BIOMES, Pair
from landscapes.render import VERSION, render_pair
from landscapes.render.fields import load_fields, sample
from landscapes.render.light import light_of
from landscapes.render.picture import accepted_scene, draft_labels, is_acceptable, paint_scene
from landscapes.render.real_sky import lay_real_sky
from landscapes.render.scene import Curve, Lake, Scene, draw_scene
from landscapes.render.sky import paint_sky

PAIRS = 100


@functools.cache
def rendered() -> list[Pair]:
    return [render_pair(2, index, 32) for index in range(PAIRS)]


def test_a_pair_can_be_made_again_alone() -> None:
    for index in (77, 3):
        again = render_pair(2, index, 32)
        assert np.array_equal(again.image, rendered()[index].image)
        assert np.array_equal(again.labels, rendered()[index].labels)
        assert again.meta == rendered()[index].meta


def test_seeds_and_indices_differ() -> None:
    images = {pair.image.tobytes() for pair in rendered()}
    assert len(images) == PAIRS
    assert not np.array_equal(render_pair(3, 0, 32).labels, rendered()[0].labels)


@pytest.mark.parametrize("index", range(4))
def test_a_pair_shows_the_same_scene_at_any_size(index: int) -> None:
    small, large = render_pair(4, index, 32), render_pair(4, index, 64)
    assert (large.labels[::2, ::2] == small.labels).mean() > 0.9
    reduced = large.image.reshape(32, 2, 32, 2, 3).mean((1, 3))
    assert np.abs(reduced - small.image).mean() < 8
    assert small.meta == large.meta


def test_pairs_are_bytes_of_known_classes() -> None:
    for pair in rendered():
        assert pair.image.shape == (32, 32, 3)
        assert pair.image.dtype == pair.labels.dtype == np.uint8
        assert pair.labels.max() < len(palette.CLASSES)
        assert pair.meta.source == VERSION


def test_every_class_is_in_a_quarter_of_the_pairs() -> None:
    shares = [np.bincount(pair.labels.ravel(), minlength=9) / 1024 for pair in rendered()]
    present = dict(zip(palette.NAMES, (np.array(shares) >= 0.004).mean(0), strict=True))
    assert min(present.values()) >= 0.25, present


def test_accepted_scenes_have_three_classes_and_none_covers_all() -> None:
    for pair in rendered():
        shares = np.bincount(pair.labels.ravel()) / pair.labels.size
        assert (shares > 0).sum() >= 3
        assert shares.max() <= 0.8  # trees are not in the draft that is judged


def test_biomes_take_turns_and_hours_spread_evenly() -> None:
    metas = [pair.meta for pair in rendered()]
    for start in range(0, PAIRS, len(BIOMES)):
        assert {meta.biome for meta in metas[start : start + len(BIOMES)]} == set(BIOMES)
    for biome in BIOMES:
        hours = np.array([meta.hour for meta in metas if meta.biome == biome], float)
        for low, high, least in ((0, 4.8, 1), (4.8, 7.2, 2), (7.2, 16.5, 5), (16.5, 19.8, 3)):
            assert ((hours >= low) & (hours < high)).sum() >= least


def one_scene(**changes: object) -> Scene:
    """A plain with a lake, a river, a road and mountains at noon, with no cloud."""
    scene = draw_scene(1, 0, 0)
    plain = {
        "biome": "summer",
        "hour": 12.5,
        "azimuth": 150.0,
        "horizon": 0.45,
        "haze": 0.1,
        "cloud": 0.1,
        "mountains": 0.3,
        "snow_line": 0.5,
        "hills": 0.2,
        "forest": 0.0,
        "stones": 0.0,
        "snow": 0.0,
        "beach": 0.0,
        "trees": 0,
        "lakes": (Lake(0.25, 2.0, 0.5, 0.8),),
        "river": Curve(-1.2, -0.2, 0.2, 2.0, 0.0, 1.0, 40.0),
        "road": Curve(0.6, -0.1, 0.2, 2.0, 0.0, 0.5, 40.0),
    }
    return dataclasses.replace(scene, **{**plain, **changes})


def brightness(hour: float) -> float:
    return float(paint_scene(one_scene(hour=hour), 32)[0].mean())


def test_light_follows_the_hour_and_labels_do_not() -> None:
    noon, morning, dusk, night = (brightness(hour) for hour in (12.5, 8.0, 19.2, 1.0))
    assert noon > 1.05 * dusk > 1.5 * night
    assert morning > dusk
    labels = [paint_scene(one_scene(hour=hour), 32)[1] for hour in (1.0, 6.0, 12.5, 19.0)]
    assert all(np.array_equal(labels[0], each) for each in labels[1:])


def test_hours_change_by_small_steps() -> None:
    hours = np.arange(0, 24, 0.25)
    seen = np.array([brightness(hour) for hour in hours])
    assert np.abs(np.diff(np.append(seen, seen[0]))).max() < 16


def mean_of(image: np.ndarray, labels: np.ndarray, label: int) -> np.ndarray:
    chosen = labels == label
    assert chosen.any()
    return image[chosen].mean(0)


def test_water_mirrors_the_sky() -> None:
    day, labels = paint_scene(one_scene(), 48)
    evening, _ = paint_scene(one_scene(hour=18.8), 48)
    for label in (palette.WATER, palette.RIVER):
        noon, dusk = mean_of(day, labels, label), mean_of(evening, labels, label)
        assert noon[2] > noon[0]
        assert dusk[0] / dusk[2] > 1.3 * noon[0] / noon[2]


def test_everything_that_a_scene_has_is_seen() -> None:
    seen = set(np.unique(paint_scene(one_scene(), 64)[1]))
    expected = {"sky", "water", "grass", "mountains", "snow", "road", "river"}
    assert {palette.NAMES[label] for label in seen} == expected


def test_trees_stand_on_land_and_woods_grow() -> None:
    _, bare = paint_scene(one_scene(), 64)
    _, planted = paint_scene(one_scene(trees=40), 64)
    _, wooded = paint_scene(one_scene(forest=0.9), 64)
    assert (planted == palette.TREES).any()
    assert (wooded == palette.TREES).mean() > 0.05
    # A tree may hide water that is behind it, but no land turns into water.
    assert not ((planted == palette.WATER) & (bare != palette.WATER)).any()


@pytest.mark.parametrize("biome", BIOMES)
def test_biomes_have_colors_of_their_own(biome: str) -> None:
    ground = {
        name: mean_of(*paint_scene(one_scene(biome=name, snow=0.9 * (name == "winter")), 32), label)
        for name in BIOMES
        for label in [palette.SNOW if name == "winter" else palette.GRASS]
    }
    others = [np.abs(ground[biome] - ground[name]).max() for name in BIOMES if name != biome]
    assert min(others) > 8


def test_haze_hides_what_is_far() -> None:
    clear, labels = paint_scene(one_scene(haze=0.0), 48)
    hazy, _ = paint_scene(one_scene(haze=1.0), 48)
    rock = labels == palette.MOUNTAINS
    assert hazy[rock].std(0).mean() < 0.5 * clear[rock].std(0).mean()


def test_a_scene_that_hides_its_lake_is_not_accepted() -> None:
    scene = one_scene()
    assert is_acceptable(scene, draft_labels(scene))
    hidden = one_scene(lakes=(Lake(5.0, 2.2, 0.1, 0.1),))
    assert not is_acceptable(hidden, draft_labels(hidden))
    assert not is_acceptable(
        one_scene(lakes=(), river=None, road=None), np.zeros((48, 48), np.uint8)
    )
    accepted = accepted_scene(1, 5)
    assert is_acceptable(accepted, draft_labels(accepted))


def test_fields_repeat_without_a_seam() -> None:
    fields = load_fields()
    for field in (fields.elevation, fields.grass, fields.smooth, fields.ridged, fields.cells):
        within = np.abs(np.diff(field, axis=0)).mean()
        assert np.abs(field[0] - field[-1]).mean() < 3 * within
    places = np.linspace(-600, 600, 50, dtype=np.float32)
    once = sample(fields.smooth, places, places)
    again = sample(fields.smooth, places + 256, places - 512)
    assert np.abs(once - again).max() < 1e-3


def test_half_of_the_pairs_have_real_skies_if_asked() -> None:
    changed, on_land = 0, np.zeros(2)
    for index, painted in enumerate(rendered()[:40]):
        real = render_pair(2, index, 32, skies=True)
        assert np.array_equal(real.labels, painted.labels)
        assert (real.meta.source, painted.meta.source) == (f"{VERSION}-skies", VERSION)
        if np.array_equal(real.image, painted.image):
            continue
        changed += 1
        # Land is the same, but for water, which mirrors the sky, and for gaps in trees.
        wet = np.isin(painted.labels, (palette.WATER, palette.RIVER))
        moved = np.abs(real.image.astype(int) - painted.image).max(2)
        inner = ndimage.binary_erosion((painted.labels != palette.SKY) & ~wet, iterations=2)
        on_land += [(moved[inner] > 1).sum(), inner.sum()]
        assert moved[painted.labels == palette.SKY].mean() > 2
    assert 10 <= changed <= 30
    assert on_land[0] < 0.02 * on_land[1]


@pytest.mark.parametrize("hour", [1.0, 5.6, 8.0, 12.5, 16.0, 18.0, 19.6])
def test_a_real_sky_is_as_bright_as_the_hour(hour: float) -> None:
    scene = one_scene(hour=hour, azimuth=140.0)
    light = light_of(scene)
    brightness = [
        float((1 - np.exp(-each(scene, light, 64)[:20])).mean())
        for each in (lay_real_sky, paint_sky)
    ]
    assert 0.4 < brightness[0] / brightness[1] < 2.5


def test_the_sun_of_a_panorama_is_where_the_light_comes_from() -> None:
    columns = []
    for azimuth in (-15.0, 15.0):
        scene = one_scene(hour=5.6, azimuth=azimuth)
        sky = lay_real_sky(scene, light_of(scene), 64).mean((0, 2))
        columns.append(int(sky.argmax()))
    assert columns[0] + 15 < columns[1]
