"""What a rank tells of the exception that ends it."""

from __future__ import annotations

import pytest

from horovod._rank.reports.end import EndReport, end_report, report_of, tell_end
from horovod._rendezvous.secret import make_secret
from horovod._rendezvous.server import StoreServer
from horovod.errors import PeerLostError, UsageError

LINE = __name__.rpartition(".")[-1] + ".py:"


def caught(*chain: BaseException, suppress: bool = False) -> BaseException:
    """Raises the errors one in the handler of the other; returns the last."""
    seen: BaseException | None = None
    for error in chain:
        try:
            if suppress:
                raise error from None
            raise error from seen
        except BaseException as raised:
            seen = raised
    assert seen is not None
    return seen


def test_kind_text_and_line() -> None:
    report = report_of(caught(UsageError("bad")))
    assert (report.kind, report.text, report.causes) == ("UsageError", "bad", ())
    assert LINE in report.where


def test_causes_come_first() -> None:
    report = report_of(caught(PeerLostError("rank 1 was lost"), RuntimeError("epoch 3")))
    assert report.lines == ("PeerLostError: rank 1 was lost", "RuntimeError: epoch 3")
    hidden = caught(PeerLostError("rank 1 was lost"), RuntimeError("epoch 3"), suppress=True)
    assert report_of(hidden).lines == ("RuntimeError: epoch 3",)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_any_exception_makes_a_short_report() -> None:
    chain = [ValueError("x" * 100_000) for _ in range(50)]
    report = report_of(caught(*chain))
    assert len(report.to_json()) < 10_000
    assert EndReport.from_json(report.to_json()) == report
    assert report_of(caught(Mute())).text == ""


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"kind": 1}', b"\xff", b"null"])
def test_something_else_is_no_report(text: bytes) -> None:
    assert EndReport.from_json(text) is None


def launched(
    monkeypatch: pytest.MonkeyPatch, server: StoreServer, secret: bytes, size: int
) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", server.address)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.port))
    monkeypatch.setenv("HOROVOD_SECRET_KEY", secret.hex())
    monkeypatch.setenv("HOROVOD_RANK", "3")
    monkeypatch.setenv("HOROVOD_SIZE", str(size))


def test_a_report_reaches_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = make_secret()
    with StoreServer(secret, address="127.0.0.1", port=0) as server:
        launched(monkeypatch, server, secret, 4)
        assert end_report(3, server.try_get) is None
        tell_end(KeyboardInterrupt())
        assert end_report(3, server.try_get) is None
        tell_end(caught(UsageError("bad")))
        report = end_report(3, server.try_get)
        assert report is not None
        assert report.lines == ("UsageError: bad",)


def test_the_followers_of_a_large_job_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = make_secret()
    with StoreServer(secret, address="127.0.0.1", port=0) as server:
        launched(monkeypatch, server, secret, 10_000)
        tell_end(PeerLostError("rank 1 was lost"))
        assert end_report(3, server.try_get) is None
        tell_end(ValueError("bad"))
        assert end_report(3, server.try_get) is not None


def test_nobody_to_tell_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = make_secret()
    with StoreServer(secret, address="127.0.0.1", port=0) as server:
        launched(monkeypatch, server, secret, 4)
    tell_end(ValueError("bad"))  # the store is gone
    monkeypatch.setenv("HOROVOD_RANK", "nonsense")
    tell_end(ValueError("bad"))
    monkeypatch.delenv("HOROVOD_RANK")
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    tell_end(ValueError("bad"))
