"""The interface of the page: a description, pictures, styles and regions of photos."""

from __future__ import annotations

import io
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from landscapes.errors import LandscapesError
from landscapes.image_bounds import MOST_BYTES
from landscapes.photos import read_photo
from landscapes.runs import from_runs, to_runs
from landscapes.serving.queue import BusyError, PaintingThread
from landscapes.serving.requests import (
    MOST_BYTES_OF_JSON,
    RefusedError,
    Style,
    parse_synthesize,
    read_body,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import numpy as np
    from numpy.typing import NDArray

    from landscapes.studio import Studio

PAGE = Path(__file__).parents[1] / "page"
PHOTOS = ("image/png", "image/jpeg", "image/webp")
MOST_WAITING = 8
# The page loads nothing from elsewhere, and other pages cannot show or read it.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def build_app(studio: Studio, most_waiting: int = MOST_WAITING) -> FastAPI:
    """Return the application that paints with ``studio``, one picture at a time.

    A request beyond ``most_waiting`` that wait already is answered with 503. Every refusal is JSON
    with a sentence as ``error``. Names of hosts other than this machine's are refused, so that a
    page from elsewhere cannot reach the interface through a name of its own.
    """
    thread = PaintingThread(most_waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        thread.close()

    app = FastAPI(
        title="Landscapes", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan
    )
    app.add_middleware(
        TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "testserver"]
    )
    app.middleware("http")(_add_headers)
    _refuse_in_sentences(app)
    _add_interface(app, studio, thread)
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    return app


async def _add_headers(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


def _refuse_in_sentences(app: FastAPI) -> None:
    def refuse(status: int, sentence: str) -> JSONResponse:
        return JSONResponse({"error": sentence}, status)

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        return refuse(error.status, str(error))

    @app.exception_handler(LandscapesError)
    async def wrong(_: Request, error: LandscapesError) -> JSONResponse:
        return refuse(400, str(error))

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> JSONResponse:
        return refuse(503, str(error))

    @app.exception_handler(HTTPException)
    async def missing(request: Request, error: HTTPException) -> JSONResponse:
        return refuse(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")


def _add_interface(app: FastAPI, studio: Studio, thread: PaintingThread) -> None:
    @app.get("/api/meta")
    async def meta() -> JSONResponse:
        return JSONResponse({"engine": "server", **studio.describe()})

    @app.get("/api/sheet.png")
    async def sheet() -> Response:
        return _png(studio.sheet)

    @app.post("/api/synthesize")
    async def synthesize(request: Request) -> Response:
        asked = parse_synthesize(
            await read_body(request, ("application/json",), MOST_BYTES_OF_JSON)
        )
        labels = from_runs(asked.runs, asked.width, asked.height)
        return _png(await thread.run(studio.paint, labels, _vector_of(asked.style, studio)))

    @app.post("/api/style")
    async def style(request: Request) -> JSONResponse:
        content = await read_body(request, PHOTOS, MOST_BYTES)
        vector = await thread.run(lambda: studio.encode(read_photo(content, "the photo")))
        return JSONResponse({"vector": vector.tolist()})

    @app.post("/api/segment")
    async def segment(request: Request) -> JSONResponse:
        content = await read_body(request, PHOTOS, MOST_BYTES)
        labels = await thread.run(lambda: studio.segment(read_photo(content, "the photo")))
        height, width = labels.shape
        return JSONResponse({"width": width, "height": height, "runs": to_runs(labels)})


def _vector_of(style: Style, studio: Studio) -> NDArray[np.float32]:
    given = [key for key in ("name", "vector", "seed") if getattr(style, key) is not None]
    if len(given) != 1:
        raise RefusedError(422, f"A style has one of name, vector and seed, not {given or 'none'}.")
    if style.name is not None:
        return studio.style_named(style.name)
    if style.vector is not None:
        return studio.style_from(style.vector)
    assert style.seed is not None
    return studio.style_drawn(style.seed)


def _png(pixels: NDArray[np.uint8]) -> Response:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return Response(file.getvalue(), media_type="image/png")
