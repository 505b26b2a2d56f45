"""The reader of drawn maps: colors, blended edges, JPEG, thin lines, and hostile files."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from landscapes import palette
from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES, COLORS, paint_labels
from landscapes.render import render_pair
from landscapes.sketch import fit_labels, read_sketch
from landscapes.sketch.colors import find_nearest, to_lab

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def encode_labels(labels: NDArray[np.uint8], kind: str = "PNG", **options: object) -> bytes:
    return encode(Image.fromarray(paint_labels(labels)), kind, **options)


def scene(size: int = 128) -> Image.Image:
    """Sky over mountains over grass, with a lake, in the colors of the palette."""
    image = Image.new("RGB", (size, size), tuple(COLORS[palette.SKY]))
    draw = ImageDraw.Draw(image)
    fill = [tuple(map(int, color)) for color in COLORS]
    peaks = [(0, 0.5), (0.3, 0.25), (0.6, 0.5), (0.8, 0.35), (1, 0.5)]
    draw.polygon([(x * size, y * size) for x, y in peaks], fill[palette.MOUNTAINS])
    draw.rectangle((0, size // 2, size, size), fill[palette.GRASS])
    draw.ellipse((0.1 * size, 0.6 * size, 0.5 * size, 0.8 * size), fill[palette.WATER])
    return image


def labels_of(image: Image.Image) -> NDArray[np.uint8]:
    return find_nearest(np.asarray(image)).labels


def test_every_color_of_the_palette_is_its_class() -> None:
    assert find_nearest(COLORS[None]).labels.tolist() == [[each.id for each in CLASSES]]


def test_colors_of_the_palette_differ_visibly() -> None:
    lab = to_lab(COLORS)
    away = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    assert away[~np.eye(len(lab), dtype=bool)].min() > 27


def test_white_is_white_in_lab() -> None:
    assert to_lab(np.full(3, 255, np.uint8)) == pytest.approx(np.array([100, 0, 0]), abs=0.02)


@pytest.mark.parametrize("index", range(6))
def test_a_label_map_in_colors_comes_back_as_it_was(index: int) -> None:
    labels = render_pair(3, index, 64).labels
    sketch = read_sketch(encode_labels(labels), lines=False)
    assert np.array_equal(sketch.labels, labels)
    assert sketch.report.edges == sketch.report.unknown == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
def test_any_map_survives_colors_and_ids(seed: int, height: int, width: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 9, (height, width)).astype(np.uint8)
    assert np.array_equal(read_sketch(encode_labels(labels), lines=False).labels, labels)
    assert np.array_equal(read_sketch(encode(Image.fromarray(labels))).labels, labels)


@pytest.mark.parametrize(("quality", "wrong"), [(95, 0.002), (75, 0.004), (40, 0.01)])
def test_jpeg_noise_changes_next_to_nothing(quality: int, wrong: float) -> None:
    labels = labels_of(scene(256))
    sketch = read_sketch(encode_labels(labels, "JPEG", quality=quality), lines=False)
    assert (sketch.labels != labels).mean() < wrong


def test_antialiased_edges_bring_no_class_of_their_own() -> None:
    smooth = scene(1024).resize((256, 256), Image.Resampling.LANCZOS)
    raw = np.unique(find_nearest(np.asarray(smooth)).labels)
    assert len(raw) > 4  # blended edges look like other classes
    sketch = read_sketch(encode(smooth))
    expected = {palette.SKY, palette.MOUNTAINS, palette.GRASS, palette.WATER}
    assert set(np.unique(sketch.labels)) == expected
    assert sketch.report.edges > 0
    assert (sketch.labels != labels_of(scene(256))).mean() < 0.01


def test_an_area_in_a_shade_of_its_own_keeps_its_straight_edges() -> None:
    image = Image.new("RGB", (64, 64), tuple(COLORS[palette.SKY]))
    shade = (120, 195, 100)  # 15 from grass
    ImageDraw.Draw(image).rectangle((0, 32, 64, 64), shade)
    labels = read_sketch(encode(image)).labels
    assert (labels[32:] == palette.GRASS).all()
    assert (labels[:32] == palette.SKY).all()


def test_unknown_pixels_follow_the_nearest_class_and_are_reported() -> None:
    image = scene()
    ImageDraw.Draw(image).rectangle((60, 100, 90, 120), (255, 0, 128))
    sketch = read_sketch(encode(image))
    assert (sketch.labels[100:121, 60:91] == palette.GRASS).all()
    assert sketch.report.unknown == pytest.approx(31 * 21 / 128**2, abs=0.01)
    assert any("no color of the palette" in each for each in sketch.report.sentences())
    with pytest.raises(LandscapesError, match="no color of the palette, more than 0%"):
        read_sketch(encode(image), strict=True)


def test_a_map_that_is_mostly_unknown_is_refused_with_the_colors() -> None:
    with pytest.raises(LandscapesError, match=r"100\.0% of .*mountains #5a3a1e"):
        read_sketch(encode(Image.new("RGB", (32, 32), "white")))


def test_transparent_pixels_are_unknown() -> None:
    image = scene().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 64, 128, 80))
    assert read_sketch(encode(image)).report.unknown == pytest.approx(16 / 128, abs=0.01)
    image.paste((0, 0, 0, 0), (0, 0, 128, 80))
    with pytest.raises(LandscapesError, match="paint all areas"):
        read_sketch(encode(image))


def draw_line(image: Image.Image, label: int, points: list[tuple[int, int]], width: int) -> None:
    color = tuple(map(int, COLORS[label]))
    ImageDraw.Draw(image).line(points, color, width, "curve")


@pytest.mark.parametrize(
    ("drawn", "becomes"),
    [
        (palette.WATER, palette.RIVER),
        (palette.SKY, palette.RIVER),
        (palette.MOUNTAINS, palette.ROAD),
        (palette.ROAD, palette.ROAD),
        (palette.RIVER, palette.RIVER),
    ],
)
def test_a_thin_line_is_a_river_or_a_road(drawn: int, becomes: int) -> None:
    image = scene(256)
    draw_line(image, drawn, [(230, 250), (200, 200), (170, 180), (180, 145)], 5)
    sketch = read_sketch(encode(image))
    assert sketch.labels[200, 200] == becomes
    assert sketch.labels[170, 75] == palette.WATER  # the lake
    assert sketch.labels[100, 80] == palette.MOUNTAINS
    assert len(sketch.report.lines) == (drawn != becomes)
    kept = read_sketch(encode(image), lines=False)
    assert kept.labels[200, 200] == drawn


def test_a_line_that_runs_into_a_lake_of_its_color_ends_there() -> None:
    image = scene(256)
    draw_line(image, palette.WATER, [(230, 250), (200, 200), (110, 180)], 5)
    labels = read_sketch(encode(image)).labels
    assert labels[200, 200] == palette.RIVER
    assert labels[175, 75] == palette.WATER
    assert (labels[155:200, 30:110] == palette.RIVER).sum() == 0


@pytest.mark.parametrize("box", [(150, 200, 190, 230), (200, 200, 206, 218)])
def test_ponds_and_short_strokes_stay_water(box: tuple[int, int, int, int]) -> None:
    image = scene(256)
    ImageDraw.Draw(image).ellipse(box, tuple(map(int, COLORS[palette.WATER])))
    assert not read_sketch(encode(image)).report.lines


def test_thin_sky_between_peaks_stays_sky() -> None:
    image = scene(256)
    draw_line(image, palette.SKY, [(128, 0), (120, 60), (128, 125)], 3)
    assert read_sketch(encode(image)).labels[60, 120] == palette.SKY


def test_maps_of_ids_are_taken_as_they_are() -> None:
    labels = render_pair(1, 1, 64).labels.copy()
    labels[0, 0] = palette.UNKNOWN
    gray = read_sketch(encode(Image.fromarray(labels)))
    assert gray.report.from_ids
    assert gray.labels[0, 0] == palette.SKY
    assert np.array_equal(gray.labels[1:], labels[1:])
    indexed = Image.fromarray(np.where(labels == palette.UNKNOWN, 0, labels).astype(np.uint8))
    indexed.putpalette(COLORS.tobytes())
    read = read_sketch(encode(indexed))
    assert read.report.from_ids
    assert np.array_equal(read.labels, np.asarray(indexed))


def test_an_indexed_image_with_a_palette_of_its_own_is_read_by_its_colors() -> None:
    expected = read_sketch(encode(scene())).labels
    indexed = scene().quantize(16)
    sketch = read_sketch(encode(indexed))
    assert not sketch.report.from_ids
    assert (sketch.labels != expected).mean() < 0.01


def test_a_large_drawing_is_reduced_and_says_so() -> None:
    sketch = read_sketch(encode(scene(3000)))
    assert sketch.labels.shape == (1024, 1024)
    assert "Reduced from 3000 x 3000 to 1024 x 1024 pixels." in sketch.report.sentences()


def huge_png() -> bytes:
    """A PNG whose header promises 60000 x 60000 pixels."""
    content = bytearray(encode(Image.new("RGB", (8, 8))))
    content[16:24] = (60000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


def animated() -> bytes:
    stream = io.BytesIO()
    scene(32).save(stream, "GIF", save_all=True, append_images=[Image.new("RGB", (32, 32))])
    return stream.getvalue()


HOSTILE = {
    "huge": (huge_png(), "more than 50 million"),
    "truncated": (encode(scene())[:300], "damaged"),
    "truncated jpeg": (encode(scene(), "JPEG")[:900], "damaged"),
    "text": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not a PNG, JPEG"),
    "empty": (b"", "is not a PNG, JPEG"),
    "tiff": (encode(scene(), "TIFF"), "is not a PNG, JPEG"),
    "animated": (animated(), "is animated"),
    "16 bit": (encode(Image.fromarray(np.full((8, 8), 300, np.uint16))), "16 or 32 bits"),
    "two colors": (encode(Image.new("1", (8, 8), 1)), "no color of the palette"),
    "long": (bytes(20_000_001), "more than 20 MB"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_gets_one_sentence(case: str) -> None:
    content, expected = HOSTILE[case]
    with pytest.raises(LandscapesError, match=expected) as caught:
        read_sketch(content, "sketch.png")
    assert "sketch.png" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_bytes_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(
        encode(scene(32), data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP"])))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        labels = read_sketch(bytes(content)).labels
    except LandscapesError:
        return
    assert labels.max() < len(CLASSES)


def test_a_drawing_of_noise_is_answered_in_time() -> None:
    draw = np.random.default_rng(1)
    noise = COLORS[draw.integers(0, 9, (1024, 1024))]
    sketch = read_sketch(encode(Image.fromarray(noise)))
    assert sketch.labels.shape == (1024, 1024)


def test_thin_lines_outlast_the_reduction_to_a_network() -> None:
    image = scene(512)
    draw_line(image, palette.ROAD, [(460, 500), (400, 400), (340, 360), (360, 290)], 5)
    fitted = fit_labels(read_sketch(encode(image)).labels, 64)
    rows = np.flatnonzero((fitted == palette.ROAD).any(1))
    assert rows.tolist() == list(range(rows[0], rows[-1] + 1))
    assert len(rows) > 22
    assert fit_labels(fitted, 64) is fitted


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LandscapesError, match="cannot be read: No such file"):
        read_sketch(tmp_path / "none.png")
