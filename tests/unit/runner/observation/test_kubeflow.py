"""Posts of the status of a job, to a server in place of Kubeflow's."""

from __future__ import annotations

import json
import queue
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from horovod.runner.observation.kubeflow import StatusPosts, status_of
from horovod.runner.observation.records import RUNNING, JobView, RankView, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_S = 3600.0


def view_of(number: int, **logged: float) -> JobView:
    ranks = tuple(
        RankView(rank, "a", RUNNING, 1.0, steps=number + rank, step_s=0.25) for rank in range(2)
    )
    verdict = Verdict("healthy", "nothing holds the job up")
    return JobView(number, 0.0, "1", "train", 0.0, 0, ranks, (verdict,), logged=logged)


@contextmanager
def trainer(status: int = 200) -> Iterator[tuple[str, queue.Queue[tuple[str, Any]]]]:
    posts: queue.Queue[tuple[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.put((self.headers["Authorization"], json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/status", posts
        finally:
            server.shutdown()
            thread.join(60)


def values_in(post: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in post["trainerStatus"]["metrics"]}


def test_the_first_view_and_the_last_one_are_posted_with_the_newest_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    said: list[str] = []
    with trainer() as (url, posts):
        environ = {
            "KUBEFLOW_TRAINER_STATUS_URL": url,
            "KUBEFLOW_TRAINER_STATUS_TOKEN": str(token),
        }
        sending = StatusPosts(environ, said.append, LONG_S)
        sending.take(view_of(1, loss=0.5))
        authorization, post = posts.get(timeout=60)
        assert authorization == "Bearer first"
        expected = {"step": "1", "step_seconds": "0.25", "loss": "0.5"}
        assert expected.items() <= values_in(post).items()
        token.write_text("second\n")
        for number in range(2, 100):
            sending.take(view_of(number))
        sending.close()
        authorization, post = posts.get(timeout=60)
        assert (authorization, values_in(post)["step"]) == ("Bearer second", "99")
        assert posts.empty()
    assert said == []


def test_a_server_that_refuses_is_named_once() -> None:
    said: list[str] = []
    with trainer(403) as (url, posts):
        sending = StatusPosts({"KUBEFLOW_TRAINER_STATUS_URL": url}, said.append, 0.0)
        for number in range(3):
            sending.take(view_of(number))
            posts.get(timeout=60)
        sending.close()
    (line,) = said
    assert line.startswith("KUBEFLOW_TRAINER_STATUS_URL: the status of the job was not taken: ")
    assert "403" in line


def test_a_status_is_bounded_and_has_no_percentage_that_nobody_knows() -> None:
    logged = {f"value-{number}": float(number) for number in range(100)}
    status = status_of(view_of(7, **logged), 0.0)["trainerStatus"]
    assert len(status["metrics"]) == 30
    assert status["lastUpdatedTime"] == "1970-01-01T00:00:00+00:00"
    assert "progressPercentage" not in status


def test_a_token_that_cannot_be_sent_is_not_printed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\nof two lines\n")
    said: list[str] = []
    with trainer() as (url, posts):
        environ = {
            "KUBEFLOW_TRAINER_STATUS_URL": url,
            "KUBEFLOW_TRAINER_STATUS_TOKEN": str(token),
        }
        sending = StatusPosts(environ, said.append, LONG_S)
        sending.take(view_of(1))
        sending.close()
        assert posts.empty()
    (line,) = said
    assert line.endswith(f"{token} is not a token in one line")


def test_a_server_that_speaks_no_http_does_not_end_the_posts() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        sending = StatusPosts({"KUBEFLOW_TRAINER_STATUS_URL": url}, said.append, 0.0)
        for number in range(2):
            sending.take(view_of(number))
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"no such protocol\r\n\r\n")
        sending.close()
    (line,) = said
    assert "the status of the job was not taken" in line
