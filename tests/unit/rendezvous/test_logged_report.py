"""What rank 0 reports to the launcher of the values of hvd.log."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from horovod._rank.reports import logged
from horovod._rank.reports.logged import LoggedReport
from horovod._rendezvous.logged import LOGGED_KEY, Logged
from horovod._rendezvous.secret import make_secret
from horovod._rendezvous.store import StoreClient, StoreServer
from horovod._settings.config import Config
from horovod.errors import StartError


def test_latest_values_of_each_name_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "INTERVAL_S", 3600.0)
    secret = make_secret()
    with StoreServer(secret, "127.0.0.1", 0) as server:
        config = Config(
            rendezvous_addr=server.address,
            rendezvous_port=server.port,
            secret_key=secret.hex(),
        )
        report = LoggedReport(config)
        with StoreClient(server.address, server.port, secret) as launcher:

            def told() -> Logged:
                return Logged.from_json(launcher.try_get(LOGGED_KEY) or b"")

            report.tell(0, {"loss": 3.0})
            assert told() == Logged(0, {"loss": 3.0})
            report.tell(1, {"loss": 2.0, "accuracy": 0.5})
            report.tell(2, {"loss": 1.0})
            assert told().step == 0  # a moment ago
            report.close()
            assert told() == Logged(2, {"loss": 1.0, "accuracy": 0.5})
            following = LoggedReport(replace(config, generation=1))
            following.tell(3, {"loss": 0.5})  # nothing is left of the generation before
            assert told() == Logged(3, {"loss": 0.5})
            following.close()


def test_launcher_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "_TIMEOUT_S", 0.1)
    secret = make_secret()
    with StoreServer(secret, "127.0.0.1", 0) as server:
        where = server.address, server.port
    config = Config(rendezvous_addr=where[0], rendezvous_port=where[1], secret_key=secret.hex())
    report = LoggedReport(config)
    report.tell(0, {"loss": 3.0})
    report.close()


def test_nan_and_infinity_arrive() -> None:
    found = Logged.from_json(Logged(1, {"a": math.nan, "b": math.inf}).to_json())
    assert math.isnan(found.values["a"])
    assert found.values["b"] == math.inf


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"kind": "waits", "step": 1, "values": {}}',
        b'{"kind": "logged", "step": -1, "values": {}}',
        b'{"kind": "logged", "step": 1, "values": {"a": "x"}}',
        b'{"kind": "logged", "step": 1, "values": [1]}',
        json.dumps({"kind": "logged", "step": 1, "values": dict.fromkeys(range(1001), 1)}).encode(),
    ],
)
def test_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(StartError, match="malformed values"):
        Logged.from_json(text)
