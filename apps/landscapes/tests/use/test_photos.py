"""Photos from strangers: read, or refused in a sentence."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from landscapes.errors import LandscapesError
from landscapes.image_bounds import MOST_BYTES
from landscapes.photos import crop_square, read_photo

if TYPE_CHECKING:
    from pathlib import Path


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def test_pixels_of_a_png_are_returned() -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert np.array_equal(read_photo(encode(Image.fromarray(pixels))), pixels)


def test_transparency_is_laid_on_white() -> None:
    clear = Image.new("RGBA", (2, 2), (200, 0, 0, 0))
    assert read_photo(encode(clear)).tolist() == [[[255] * 3] * 2] * 2


def test_palette_with_a_transparent_color() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert read_photo(encode(image, transparency=1)).tolist() == [[[10, 20, 30], [255] * 3]]


def test_16_bit_gray_is_scaled() -> None:
    image = Image.fromarray(np.array([[0, 65535, 32896]], np.uint16))
    assert read_photo(encode(image))[0, :, 0].tolist() == [0, 255, 128]


def test_photos_are_turned_upright() -> None:
    image = Image.new("RGB", (4, 2))
    exif = Image.Exif()
    exif[0x0112] = 6  # by 90 degrees
    assert read_photo(encode(image, "JPEG", exif=exif)).shape == (4, 2, 3)


@pytest.mark.parametrize("mode", ["CMYK", "L"])
def test_other_color_spaces_become_rgb(mode: str) -> None:
    assert read_photo(encode(Image.new(mode, (3, 2)), "JPEG")).shape == (2, 3, 3)


def test_truncated_files_are_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    for kind in ("PNG", "JPEG", "WEBP"):
        content = encode(Image.fromarray(noise), kind)
        with pytest.raises(LandscapesError, match="the image is no image that can be read"):
            read_photo(content[: len(content) // 2])


def test_animations_are_refused() -> None:
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    with pytest.raises(LandscapesError, match="animated: save one frame"):
        read_photo(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]))


def test_many_pixels_in_few_bytes_are_refused_before_they_are_decoded() -> None:
    bomb = encode(Image.new("1", (30_000, 30_000)))
    assert len(bomb) < 200_000
    with pytest.raises(LandscapesError, match=r"30000 x 30000 pixels|exceeds limit"):
        read_photo(bomb)


def test_many_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 2)
    with pytest.raises(LandscapesError, match=r"large.png has 20 MB"):
        read_photo(path)


@pytest.mark.parametrize("content", [b"", b"GIF89a" + bytes(20), b"<svg xmlns='x'/>", b"%PDF-1.4"])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(LandscapesError, match="use a whole PNG, JPEG or WebP"):
        read_photo(content)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(LandscapesError, match=r"no.png cannot be read: No such file"):
        read_photo(tmp_path / "no.png")
    with pytest.raises(LandscapesError, match="cannot be read: Is a directory"):
        read_photo(tmp_path)


def test_the_central_square_is_kept() -> None:
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 200
    assert (crop_square(pixels, 2) == 200).all()
