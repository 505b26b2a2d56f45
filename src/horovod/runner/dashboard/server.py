"""Serves the page on 127.0.0.1 to those who know its token.

The address has the token behind ``#``, which browsers do not send: the page's script sends it in a
header. So it is in no log of a proxy, in no cookie, and no other site can use it.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import socket
import threading
import zlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from horovod.errors import UsageError
from horovod.runner.dashboard.feed import Feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from horovod.runner.observation.client import StreamClient

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/strip.js": ("strip.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uPlot.esm.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uPlot.min.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    # uPlot sets styles of elements from its script, which 'self' allows.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_VIEWERS = 32
_ANSWER_S = 60.0
# Viewers get the end of the job before the server goes.
_FAREWELL_S = 2.0


def serve(client: StreamClient, port: int, say_where: Callable[[str], object]) -> None:
    """Serve the page until the job has ended.

    Args:
        client: connected to the job.
        port: of 127.0.0.1; 0 for any.
        say_where: called with the address once the server listens.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=64)
    except OSError as error:
        raise UsageError(f"cannot serve the page at port {port}: {error.strerror}") from None
    token = secrets.token_urlsafe(32)
    with listener:
        asyncio.run(_serve(client, listener, token, say_where))


async def _serve(
    client: StreamClient, listener: socket.socket, token: str, say_where: Callable[[str], object]
) -> None:
    feed = Feed(client.ask)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        try:
            for message in client.messages():
                loop.call_soon_threadsafe(feed.take, message)
            loop.call_soon_threadsafe(ended.set)
        except RuntimeError:  # the loop has ended before the job
            return

    server = uvicorn.Server(
        uvicorn.Config(
            build_app(feed, token),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    threading.Thread(target=read, name="horovod-feed", daemon=True).start()
    say_where(f"http://127.0.0.1:{listener.getsockname()[1]}/#{token}")
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    ending = asyncio.ensure_future(ended.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    feed.end()
    if not serving.done():
        await asyncio.wait({serving}, timeout=_FAREWELL_S if feed.num_viewers else 0.0)
    server.should_exit = True
    await serving
    ending.cancel()


def build_app(feed: Feed, token: str) -> Starlette:
    """Return the application.

    Args:
        feed: what it shows.
        token: what viewers have to send.
    """
    routes = [Route(path, _file(*what)) for path, what in _FILES.items()]
    routes.append(Route("/favicon.ico", _nothing))
    secured = _Secured(token)
    routes += [
        Route("/stream", secured(_stream(feed))),
        Route("/output/{rank:int}", secured(_output(feed))),
        Route("/stacks", secured(_stacks(feed)), methods=["POST"]),
        Route("/trace", secured(_trace(feed)), methods=["POST"]),
    ]
    # Not for names that others let point here (DNS rebinding).
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


class _Secured:
    """Wraps what only viewers with the token may see."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def __call__(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                return PlainTextResponse("the token is missing or wrong", 401, _HEADERS)
            return await endpoint(request)

        return checked


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    data = (files("horovod.runner.dashboard") / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(data, headers=_HEADERS, media_type=kind)

    return answer


async def _nothing(request: Request) -> Response:
    return Response(status_code=204, headers=_HEADERS)


def _stream(feed: Feed) -> Callable[[Request], Awaitable[Response]]:
    async def events() -> AsyncIterator[str]:
        async for name, data in feed.follow():
            yield f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"

    async def answer(request: Request) -> Response:
        if feed.num_viewers >= _MOST_VIEWERS:
            return PlainTextResponse("too many viewers", 503, _HEADERS)
        return StreamingResponse(events(), headers=_HEADERS, media_type="text/event-stream")

    return answer


def _output(feed: Feed) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        rank = request.path_params["rank"]
        return _json(await feed.ask({"do": "output", "rank": rank}, _ANSWER_S))

    return answer


def _stacks(feed: Feed) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _json(await feed.ask({"do": "stacks"}, _ANSWER_S))

    return answer


def _trace(feed: Feed) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        found = await feed.ask({"do": "trace", "steps": 10}, _ANSWER_S)
        if "zlib" not in found:
            return _json(found)
        data = zlib.decompress(base64.b64decode(found["zlib"]))
        headers = {**_HEADERS, "Content-Disposition": 'attachment; filename="trace.json"'}
        return Response(data, headers=headers, media_type="application/json")

    return answer


def _json(data: dict[str, Any]) -> Response:
    return JSONResponse(data, 200 if "problem" not in data else 409, _HEADERS)
