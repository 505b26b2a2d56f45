"""Which rank prints a report that all ranks hold: some ranks of a job, with a real store."""

from __future__ import annotations

import io
import re
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from horovod._rank.reports.shared import to_print
from horovod._rendezvous import StoreServer, make_secret
from horovod._settings.config import Config
from horovod.errors import HorovodInternalError, MismatchError, StalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = "Missing ranks:\nrank 0 (a:1): [allreduce.a]\n  It sleeps.\n    train.py:5 in <module>"


@pytest.fixture
def config() -> Iterator[Config]:
    secret = make_secret()
    with StoreServer(secret) as server:
        yield Config(
            size=4,
            hostname="a",
            rendezvous_addr=server.address,
            rendezvous_port=server.port,
            secret_key=secret.hex(),
        )


def printed(config: Config, rank: int, error: BaseException) -> str:
    shown = to_print(error, replace(config, rank=rank))
    assert type(shown) is type(error)
    output = io.StringIO()
    traceback.print_exception(shown, file=output)
    return output.getvalue()


def raised(text: str, kind: type[Exception] = StalledError) -> Exception:
    try:
        raise kind(text)
    except kind as error:
        return error


def test_the_first_rank_that_dies_of_it_prints_the_whole_report(config: Config) -> None:
    errors = [raised(f"allreduce.{name} failed: some wait.\n{REPORT}") for name in "abbb"]
    first, *others = [printed(config, rank, errors[rank]) for rank in (2, 0, 1, 3)]
    assert REPORT in first
    for rank, text in zip((0, 1, 3), others, strict=True):
        assert "Missing ranks" not in text
        assert "in raised" in text  # the stack is that of this rank
        assert f"StalledError: allreduce.{'abbb'[rank]} failed: some wait." in text
        assert re.search(r"\(the other 4 lines are in the output of rank 2 \(a:\d+\)\)$", text)
    assert all(REPORT in str(error) for error in errors)


def test_a_rank_that_dies_of_something_else_prints_it(config: Config) -> None:
    assert REPORT in printed(config, 0, raised(f"allreduce.a failed\n{REPORT}"))
    assert "It is busy" in printed(
        config, 1, raised(f"allreduce.a failed\n{REPORT.replace('sleeps', 'is busy')}")
    )


@pytest.mark.parametrize(
    "error",
    [
        MismatchError("Mismatched shapes\n  rank 0 sent [3]\n  rank 1 sent [4]"),
        StalledError("one line"),
        HorovodInternalError("others say other things\n" * 9),
        ValueError("of the user\n" * 9),
    ],
)
def test_short_errors_and_errors_of_one_rank_are_printed_by_all(
    config: Config, error: Exception
) -> None:
    for rank in range(3):
        assert to_print(error, replace(config, rank=rank)) is error


def test_a_store_that_is_gone_leaves_nothing_out() -> None:
    with StoreServer(make_secret()) as server:
        gone = Config(size=2, rendezvous_addr=server.address, rendezvous_port=server.port)
    gone = replace(gone, secret_key="00" * 32)
    error = raised(f"allreduce.a failed\n{REPORT}")
    assert to_print(error, gone) is error
