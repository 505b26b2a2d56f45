"""The interface of the page: pictures, and a sentence for everything that is wrong."""

from __future__ import annotations

import asyncio
import io
import threading
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from on_page import run_apart
from PIL import Image

from landscapes.image_bounds import MOST_BYTES
from landscapes.pair import BIOMES, HOURS
from landscapes.palette import GRASS, SKY
from landscapes.runs import to_runs
from landscapes.serving.app import build_app
from landscapes.serving.requests import MOST_BYTES_OF_JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from landscapes.studio import Studio


@pytest.fixture(scope="module")
def client(studio: Studio) -> Iterator[TestClient]:
    with TestClient(build_app(studio)) as client:
        yield client


def request_of(studio: Studio, **changes: Any) -> dict[str, Any]:
    size = studio.network.size
    labels = np.full((size, size), GRASS, np.uint8)
    labels[: size // 2] = SKY
    body = {"width": size, "height": size, "runs": to_runs(labels), "style": {"seed": 1}}
    return body | changes


def pixels_in(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as image:
        return np.asarray(image)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_a_picture_is_that_of_the_network(client: TestClient, studio: Studio) -> None:
    labels = studio.scenes[0].labels
    body = request_of(studio, runs=to_runs(labels), style={"name": "winter-dawn"})
    found = pixels_in(client.post("/api/synthesize", json=body))
    assert np.array_equal(found, studio.paint(labels, studio.styles["winter-dawn"]))


def test_the_same_seed_paints_the_same_picture(client: TestClient, studio: Studio) -> None:
    first, again, other = (
        pixels_in(client.post("/api/synthesize", json=request_of(studio, style={"seed": seed})))
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_maps_of_other_sizes_are_scaled(client: TestClient, studio: Studio) -> None:
    large = np.full((300, 200), GRASS, np.uint8)
    large[:150] = SKY
    body = request_of(studio, width=200, height=300, runs=to_runs(large))
    expected = pixels_in(client.post("/api/synthesize", json=request_of(studio)))
    assert np.array_equal(pixels_in(client.post("/api/synthesize", json=body)), expected)


def test_the_description_names_every_style(client: TestClient, studio: Studio) -> None:
    meta = client.get("/api/meta").json()
    assert list(meta["styles"]) == [f"{biome}-{hour}" for biome in BIOMES for hour in HOURS]
    assert {len(style) for style in meta["styles"].values()} == {studio.network.z_dim}
    sheet = pixels_in(client.get(f"/{meta['sheet']}"))
    size = studio.network.size
    assert sheet.shape == (len(BIOMES) * size, len(HOURS) * size, 3)


def test_the_style_of_a_photo(client: TestClient, studio: Studio) -> None:
    photo = Image.new("RGB", (64, 64), (200, 120, 60))
    answer = client.post("/api/style", content=png(photo), headers={"Content-Type": "image/png"})
    assert answer.json()["vector"] == pytest.approx(
        studio.encode(np.asarray(photo)).tolist(), abs=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"width": 0}, "wrong at width"),
        ({"width": 10**9}, "wrong at width"),
        ({"runs": [9, 4096]}, "holds the id 9"),
        ({"runs": [0, 1]}, "have 1 cells"),
        ({"runs": "0"}, "wrong at runs"),
        ({"runs": [0.5, 4096]}, "wrong at runs.0"),
        ({"style": {}}, "one of name, vector and seed, not none"),
        ({"style": {"seed": 1, "name": "winter-dawn"}}, "one of name, vector and seed"),
        ({"style": {"name": "spring-dawn"}}, "There is no style 'spring-dawn': name one of summer"),
        ({"style": {"vector": [0.0]}}, "numbers, not 1"),
        ({"style": {"vector": [1e9]}}, "wrong at style.vector.0"),
        ({"style": {"vector": [float("nan")]}}, "wrong at"),
        ({"style": {"seed": -1}}, "wrong at style.seed"),
        ({"extra": 1}, "wrong at extra"),
    ],
)
def test_wrong_requests_get_a_sentence(
    client: TestClient, studio: Studio, changes: dict[str, Any], sentence: str
) -> None:
    import json

    body = json.dumps(request_of(studio, **changes))  # which writes NaN, as httpx does not
    answer = client.post(
        "/api/synthesize", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    assert sentence in answer.json()["error"]


@pytest.mark.parametrize("content", [b"", b"[", b"\xff\xfe", b"null", b"[" * 100_000])
def test_bodies_that_are_no_json_get_a_sentence(client: TestClient, content: bytes) -> None:
    answer = client.post(
        "/api/synthesize", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert "The request is wrong at its start" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "media_type", "most"),
    [("synthesize", "application/json", MOST_BYTES_OF_JSON), ("style", "image/png", MOST_BYTES)],
)
def test_large_bodies_are_refused_before_they_have_arrived(
    client: TestClient, path: str, media_type: str, most: int
) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += most // 4
            yield bytes(most // 4)

    answer = client.post(f"/api/{path}", content=parts(), headers={"Content-Type": media_type})
    assert answer.status_code == 413
    assert "more than" in answer.json()["error"]


def test_other_media_types_are_refused(client: TestClient) -> None:
    answer = client.post("/api/style", content=b"GIF89a", headers={"Content-Type": "image/gif"})
    assert answer.status_code == 415
    # A page of another site can send this without asking; it must not be read.
    answer = client.post("/api/synthesize", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert answer.json()["error"] == "Send application/json, not text/plain."


def test_photos_that_cannot_be_read_get_a_sentence(client: TestClient) -> None:
    whole = png(Image.effect_noise((64, 64), 50))
    for content in (whole[:-200], b"no image", b""):
        answer = client.post("/api/style", content=content, headers={"Content-Type": "image/png"})
        assert answer.status_code == 400
        assert "use a whole PNG, JPEG or WebP file" in answer.json()["error"]


def test_names_of_other_hosts_are_refused(client: TestClient) -> None:
    assert client.get("/api/meta", headers={"Host": "evil.example"}).status_code == 400


def test_unknown_paths_get_a_sentence_and_no_files_beyond_the_page(client: TestClient) -> None:
    for path in ("/api/nothing", "/../studio.py", "/%2e%2e/studio.py"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "Not Found" in answer.json()["error"]


def test_the_page_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "http://" not in answer.text
    assert "https://" not in answer.text


def test_requests_beyond_the_line_get_503_and_later_ones_are_answered(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    paint = studio.paint

    def wait_and_paint(*arguments: Any) -> Any:
        assert gate.wait(60)
        return paint(*arguments)

    monkeypatch.setattr(studio, "paint", wait_and_paint)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(build_app(studio, most_waiting=2))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = request_of(studio)
            asked = [
                asyncio.create_task(client.post("/api/synthesize", json=body)) for _ in range(5)
            ]
            refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert refused
            while sum(task.done() for task in asked) < 2:
                await asyncio.wait(
                    [task for task in asked if not task.done()],
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=60,
                )
            gate.set()
            answers = await asyncio.gather(*asked)
            return [*answers, await client.post("/api/synthesize", json=body)]

    *answers, last = run_apart(ask())
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 503, 503]
    assert last.status_code == 200
    assert any("try again in a second" in answer.text for answer in answers)
