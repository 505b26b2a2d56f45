"""What the network costs a step: the forecast, and what rank 0 says of the first steps."""

from __future__ import annotations

import pytest

from horovod._rank.reports.network_cost import forecast, from_measurements
from horovod._rank.reports.network_watch import Counters, NetworkWatch

GBIT = 1e9 / 8


def test_a_slow_link_is_told_with_what_helps() -> None:
    cost = forecast([4, 4], [GBIT, GBIT], 5e-5, step_s=0.4, gradient_bytes=100e6)
    # Each of two hosts sends the gradients once: 0.8 s, of which the backward pass hides some.
    assert 0.8 < cost.step_s < 0.4 + 0.8
    assert 0.4 <= cost.quantized_s < 0.5
    assert cost.local_s == pytest.approx(0.4 + 0.8 / 8, rel=0.1)
    assert cost.is_much
    assert "2 hosts at 1.0 Gbit/s: a step takes" in cost.text()
    assert "instead of 400 ms" in cost.text()


def test_a_fast_link_is_no_trouble() -> None:
    cost = forecast([1, 1], [100 * GBIT] * 2, 1e-5, step_s=0.4, gradient_bytes=10e6)
    assert not cost.is_much
    assert cost.text().endswith("the network adds less than 10 % to a step of 400 ms")


def test_more_bytes_never_take_less_time() -> None:
    steps = [
        forecast([2, 1, 2], [GBIT, GBIT, GBIT / 4], 1e-4, 0.1, 2.0**exponent).step_s
        for exponent in range(34)
    ]
    assert steps == sorted(steps)
    assert steps[0] == pytest.approx(0.1, rel=0.1)


def test_waiting_for_a_slow_rank_is_not_the_networks() -> None:
    cost = from_measurements(2, GBIT, step_s=1.0, waited_s=0.9, moved_bytes=0.1 * GBIT)
    assert cost.alone_s == pytest.approx(0.9)
    hidden = from_measurements(2, GBIT, step_s=1.0, waited_s=0.0, moved_bytes=0.5 * GBIT)
    assert hidden.alone_s == hidden.quantized_s == 1.0


def test_waits_of_several_process_sets_may_add_up_to_more_than_a_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cost = from_measurements(2, GBIT, step_s=1.0, waited_s=1.5, moved_bytes=2 * GBIT)
    assert (cost.alone_s, cost.quantized_s) == (0.0, 0.0)
    watch = NetworkWatch(2, GBIT)
    look(watch, step_s=0.5, waited_s=0.5)
    (record,) = caplog.records
    assert "a step takes 500 ms instead of 0 ms" in record.getMessage()


def look(watch: NetworkWatch, step_s: float, waited_s: float, count: int = 7) -> None:
    for window in range(count):
        steps = 4 * window + 1
        moved_bytes = int(steps * GBIT * waited_s)
        watch.look(Counters(steps * step_s, steps, steps * waited_s, moved_bytes, moved_bytes))


def test_rank_0_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = NetworkWatch(2, GBIT)
    look(watch, step_s=0.9, waited_s=0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "slow network: 2 hosts at 1.0 Gbit/s: a step takes 900 ms instead of 400 ms; with "
        "8-bit gradients (hvd.Compression.int8, if they are float32) about 527 ms, "
        "with an exchange every 8 steps (backward_passes_per_step, or hvd.LocalSGD) "
        "about 462 ms for each"
    ]


def test_the_end_tells_what_came_of_the_forecast(caplog: pytest.LogCaptureFixture) -> None:
    watch = NetworkWatch(2, GBIT)
    look(watch, step_s=0.9, waited_s=0.5, count=5)
    steps, at_s, moved = 100, 200.0, 10**12
    for window in range(5000):
        steps, moved = steps + 4, moved + int(4 * 0.6 * GBIT)
        at_s += 60.0 if window % 50 == 0 else 4.0  # now and then an evaluation
        watch.look(Counters(at_s, steps, 0.6 * steps, moved, moved))
    watch.end()
    assert caplog.records[-1].getMessage() == (
        "slow network: in the whole job, a step usually took 1 s, and 400 ms without the network; "
        "after the first steps, 900 ms and 400 ms were expected"
    )
    assert len(caplog.records) == 2
    assert len(watch._later_windows) <= 256


def test_the_end_of_a_job_that_was_told_nothing_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = NetworkWatch(2, GBIT)
    look(watch, step_s=0.9, waited_s=0.05, count=50)
    watch.end()
    assert not caplog.records


@pytest.mark.parametrize(
    ("hosts", "rate", "waited_s"), [(2, GBIT, 0.05), (1, GBIT, 0.5), (2, 0.0, 0.5)]
)
def test_little_or_unknown_is_not_worth_a_line(
    hosts: int, rate: float, waited_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    watch = NetworkWatch(hosts, rate)
    look(watch, step_s=0.9, waited_s=waited_s)
    assert watch.is_over
    assert not caplog.records


def test_too_few_steps_say_nothing_yet(caplog: pytest.LogCaptureFixture) -> None:
    watch = NetworkWatch(2, GBIT)
    for second in range(100):
        watch.look(Counters(float(second), second // 30, second / 2, *[second * 10**8] * 2))
    assert not watch.is_over
    assert not caplog.records


@pytest.mark.parametrize(("received", "sent"), [(0.5, 0.01), (0.01, 0.5)])
def test_files_that_come_or_go_over_the_network_are_not_the_collectives(
    received: float, sent: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 waits for a slow rank, while its loader reads from a file server, or it saves."""
    watch = NetworkWatch(2, GBIT)
    for window in range(7):
        steps = 4 * window + 1
        moved = int(steps * GBIT * received), int(steps * GBIT * sent)
        watch.look(Counters(steps * 0.9, steps, steps * 0.5, *moved))
    assert watch.is_over
    assert not caplog.records
