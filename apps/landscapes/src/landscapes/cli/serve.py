"""``landscapes serve``: a page to paint on, on this machine alone."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    import argparse

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, help="a run's folder or its generator; default: the shipped one"
    )
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (default: 8000)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raise LandscapesError if the port is taken or the checkpoint unusable."""
    try:
        import uvicorn

        from landscapes.serving.app import build_app
    except ImportError as error:
        raise LandscapesError(
            f"The page needs {error.name}: pip install 'landscapes[serve]'."
        ) from error
    from landscapes.open_studio import open_studio

    listener = _listen(arguments.port)
    app = build_app(open_studio(arguments.checkpoint))
    port = listener.getsockname()[1]
    print(f"Paint at http://{ADDRESS}:{port}/ (Ctrl-C ends it). From another machine:")
    print(f"  ssh -L {port}:{ADDRESS}:{port} {socket.gethostname()}", flush=True)
    config = uvicorn.Config(app, log_level="warning", limit_concurrency=MOST_CONNECTIONS)
    uvicorn.Server(config).run([listener])
    return 0


def _listen(port: int) -> socket.socket:
    """Return a socket on the loopback address, before anything that takes time is done."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise LandscapesError(
            f"Port {port} cannot be used: {reason}. Name another, or --port 0 for a free one."
        ) from error
    return listener
