"""Tells Kubeflow's Trainer how a job gets on, where it gives an address for that (KEP-2779).

Trainer sets three variables in a pod: the address, the file of a token, which is renewed from time
to time, and the file of the certificate of its server.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._settings.exports import KUBEFLOW_CA, KUBEFLOW_TOKEN, KUBEFLOW_URL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horovod.runner.observation.records import JobView

# Trainer writes each status into the object of the job.
INTERVAL_S = 10.0
_ANSWER_S = 5.0
# Of a status; a job may log any number of values.
_MOST_METRICS = 30
_MOST_TEXT = 200


class StatusPosts:
    """Posts the newest view from time to time, and the last one at the end, on its own thread.

    Args:
        environ: Kubeflow's variables.
        say: takes one line about the first post that fails.
        interval_s: between two posts.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        say: Callable[[str], object],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._url = environ[KUBEFLOW_URL]
        self._ca = environ.get(KUBEFLOW_CA, "")
        self._token = environ.get(KUBEFLOW_TOKEN, "")
        self._say = say
        self._interval_s = interval_s
        self._has_failed = False
        self._latest: JobView | None = None
        self._news = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="horovod-kubeflow", daemon=True)
        self._thread.start()

    def take(self, view: JobView) -> None:
        """Take the next view."""
        with self._news:
            self._latest = view
            self._news.notify()

    def close(self) -> None:
        """Post the last view."""
        with self._news:
            self._is_over = True
            self._news.notify()
        self._thread.join(_ANSWER_S + 1.0)

    def _run(self) -> None:
        due_at, posted = 0.0, None
        while True:
            with self._news:
                if not self._is_over and (self._latest is posted or time.monotonic() < due_at):
                    late_s = due_at - time.monotonic()
                    self._news.wait(late_s if late_s > 0 else None)
                view, is_over = self._latest, self._is_over
            if view is not posted and view is not None and (is_over or time.monotonic() >= due_at):
                self._post(view)
                due_at, posted = time.monotonic() + self._interval_s, view
            if is_over:
                return

    def _post(self, view: JobView) -> None:
        try:
            headers = {"Content-Type": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {_read_token(self._token)}"
            data = json.dumps(status_of(view, time.time())).encode()
            request = urllib.request.Request(self._url, data, headers, method="POST")
            context = ssl.create_default_context(cafile=self._ca or None)
            with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context):
                pass
        except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPError is an OSError
            if not self._has_failed:
                self._has_failed = True
                self._say(f"{KUBEFLOW_URL}: the status of the job was not taken: {error}")


def _read_token(path: str) -> str:
    """Return the token in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has no token; the message has nothing of it, as that of http.client has.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or " " in token or not token:
        raise ValueError(f"{path} is not a token in one line")
    return token


def status_of(view: JobView, now: float) -> dict[str, Any]:
    """Return the body of a post. Pure.

    The stream does not know how many steps a program takes, so there is no percentage.

    Args:
        view: of the job.
        now: seconds since the epoch.
    """
    steps = [rank.steps for rank in view.ranks if rank.steps]
    lengths = sorted(rank.step_s for rank in view.ranks if rank.step_s > 0)
    values: dict[str, str] = {}
    if steps:
        values["step"] = str(min(steps))
    if lengths:
        values["step_seconds"] = f"{lengths[len(lengths) // 2]:.4g}"
    values["verdict"] = view.verdicts[0].text[:_MOST_TEXT]
    values |= {name[:_MOST_TEXT]: f"{value:.6g}" for name, value in view.logged.items()}
    metrics = [{"name": name, "value": value} for name, value in values.items()][:_MOST_METRICS]
    at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")
    return {"trainerStatus": {"metrics": metrics, "lastUpdatedTime": at}}
