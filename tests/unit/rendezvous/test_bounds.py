"""What a peer says is bounded before anything depends on it."""

from __future__ import annotations

import pytest

from horovod.rendezvous.bounds import name_in, number_in, one_line, seconds_in


@pytest.mark.parametrize("value", [10**12, -1, "1" * 5000, b"9" * 25, "x", 1.0, True, None, [1]])
def test_numbers_out_of_bounds_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        number_in(value, 0, 4096)


@pytest.mark.parametrize("value", [7, "7", b"7"])
def test_numbers_within_are_taken(value: object) -> None:
    assert number_in(value, 0, 7) == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 11, "1", None, True])
def test_times_out_of_bounds_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a time"):
        seconds_in(value, 10.0)


@pytest.mark.parametrize("value", ["a\nb", "a b", "a" * 256, "\x1b[2J", 3, None])
def test_names_that_would_spoil_a_line_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="name"):
        name_in(value)


def test_any_text_becomes_one_line() -> None:
    text = "it failed:\n    no route\r\nto \x1b[2Jhost"
    assert one_line(text) == "it failed: no route to [2Jhost"
    assert len(one_line("x" * 10_000_000)) == 500
