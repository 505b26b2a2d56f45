"""Planted hangs and mismatches: whether the right rank and the right line are named, and how soon.

Nothing is set unless the case is about a setting. Mismatches must be told within a second, on every
rank; the end of a rank within two; hangs within half a minute. The line is that of the rank at
fault wherever one can be known: a process that was killed or stopped cannot tell its own, so there
it is the line that waits for it.
"""

from __future__ import annotations

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from launcher import Launcher, launched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
RANK = FOLDER / "planted_rank.py"
MISMATCHES = FOLDER / "planted_mismatches.py"
MISMATCH_LIMIT_S = 1.0
LOSS_LIMIT_S = 2.0
STALL_LIMIT_S = 30.0
PEER = r"\(\S+:\d+\)"


def line_of(marker: str, file: Path = RANK) -> str:
    """``file:line`` of the line that ends with the marker."""
    lines = file.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return f"{file}:{number}"


@contextmanager
def plant(fault: str, num_ranks: int, *more: str, **env: str) -> Iterator[Launcher]:
    """Runs a job with the fault. What is left of it is killed, as a stopped rank hears no less."""
    words = sys.executable, str(RANK), fault, *more
    with launched("-np", str(num_ranks), *words, **env) as launcher:
        try:
            yield launcher
        finally:
            for process in launcher.descendants() if launcher.process.poll() is None else ():
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def stamps(launcher: Launcher, word: str) -> dict[int, tuple[float, str]]:
    """By rank the time that it printed after the word, and what stands behind it."""
    output = "\n".join(launcher.lines["stdout"])
    found = re.findall(rf"\[(\d+)\]<stdout>:{word} ([\d.]+) ?(.*)", output)
    return {int(rank): (float(at), text) for rank, at, text in found}


def planted_at(launcher: Launcher, num_ranks: int) -> float:
    launcher.wait_lines("stdout", r"planted", num_ranks)
    return max(at for at, _ in stamps(launcher, "planted").values())


# --- Ranks that disagree ----------------------------------------------------------------------


@dataclass
class Disagreement:
    """What the ranks told of one mismatch; by rank."""

    odd: int
    delay_s: float
    kinds: dict[int, str]
    texts: dict[int, str]


@pytest.fixture(scope="module")
def disagreements() -> dict[str, Disagreement]:
    with launched("-np", "3", sys.executable, str(MISMATCHES)) as launcher:
        launcher.wait_lines("stdout", "went on", 3)
        assert launcher.wait() == 0, launcher.stderr
    told: dict[str, list[dict[str, Any]]] = {}
    for line in launcher.lines["stdout"]:
        _, is_told, words = line.partition(":{")
        if is_told:
            report = json.loads("{" + words)
            told.setdefault(report["mismatch"], []).append(report)
    return {name: _disagreement(reports) for name, reports in told.items()}


def _disagreement(reports: list[dict[str, Any]]) -> Disagreement:
    assert sorted(report["rank"] for report in reports) == [0, 1, 2]
    heard = [report for report in reports if "heard" in report]
    return Disagreement(
        odd=next(report["rank"] for report in reports if report["odd"]),
        delay_s=max(report["heard"] for report in heard) - max(r["called"] for r in reports),
        kinds={report["rank"]: report["kind"] for report in heard},
        texts={report["rank"]: report["text"] for report in heard},
    )


@pytest.mark.parametrize(
    ("mismatch", "words"),
    [
        ("shape", "Mismatched tensor shapes for allreduce.shape"),
        ("number_of_dimensions", "Mismatched tensor shapes for allreduce.ndim"),
        ("dtype", "Mismatched data types for allreduce.dtype"),
        ("root", "Mismatched root ranks for broadcast.root"),
        ("reduce_op", "Mismatched reduction operations for allreduce.op"),
        ("prescale", "Mismatched prescale or postscale factors for allreduce.scaled"),
        ("weight", "Mismatched uses of weight for allreduce.weight"),
        ("rows_of_alltoall", "Mismatched tensor shapes for alltoall.alltoall"),
        ("rows_of_allgather", "Mismatched tensor shapes for allgather.gather"),
        ("shape_of_reducescatter", "Mismatched tensor shapes for reducescatter.scatter"),
        ("large_async", "Mismatched tensor shapes for allreduce.large"),
        ("order_in_group", "Mismatched tensor shapes for grouped_allreduce.group"),
        ("size_of_group", "Mismatched numbers of tensors in the group"),
        ("ranks_of_process_set", "Mismatched ranks for process_set.change"),
        ("kind_unnamed", "Mismatched operations: operations without a name"),
        ("skipped_unnamed", "Mismatched operations: operations without a name"),
        ("extra_unnamed", "Mismatched operations: operations without a name"),
    ],
)
def test_a_mismatch_names_both_lines_on_all_ranks(
    disagreements: dict[str, Disagreement], mismatch: str, words: str
) -> None:
    told = disagreements[mismatch]
    assert told.kinds == dict.fromkeys(range(3), "MismatchError")
    assert told.delay_s < MISMATCH_LIMIT_S
    odd_site = line_of(f"{mismatch}: odd", MISMATCHES)
    others_site = line_of(f"{mismatch}: others", MISMATCHES)
    for text in told.texts.values():
        assert words in text
        (odd_line,) = re.findall(rf"rank {told.odd} {PEER}.* sent .*", text)
        assert odd_line.endswith(f" at {odd_site}"), text
        assert len(re.findall(rf"rank \d {PEER} sent .* at {others_site}$", text, re.M)) == 1, text


def test_a_name_that_is_in_flight_is_refused_at_once(
    disagreements: dict[str, Disagreement],
) -> None:
    told = disagreements["duplicate"]
    assert told.kinds == {told.odd: "DuplicateNameError"}
    assert "allreduce.twice is still in flight" in told.texts[told.odd]
    assert told.delay_s < MISMATCH_LIMIT_S


def test_a_report_that_all_ranks_hold_is_printed_by_one() -> None:
    with plant("shapes", 4) as launcher:
        assert launcher.wait() == 1
    texts = [json.loads(words)["text"] for _, words in stamps(launcher, "error").values()]
    assert len(texts) == 4
    assert len(set(texts)) == 1
    assert len(re.findall(rf"rank \d {PEER} sent ", texts[0])) == 4
    # The launcher repeats what one rank wrote, if that is far up by then.
    stderr = "\n".join(line for line in launcher.lines["stderr"] if line.startswith("["))
    assert len(re.findall(rf"rank \d {PEER} sent ", stderr)) == 4, stderr
    hint = rf"\(the other 4 lines are in the output of rank \d {PEER}\)"
    assert len(re.findall(hint, stderr)) == 3, stderr


# --- Ranks that wait for each other, or do not come -------------------------------------------


@dataclass(frozen=True)
class Hang:
    """A job that hangs, and what its report must hold.

    Attributes:
        fault: a function of planted_rank.py.
        num_ranks: of the job.
        headline: a pattern in the first line of the report.
        sites: markers of the lines that the report must name.
        reporter: the rank that reports.
    """

    fault: str
    num_ranks: int
    headline: str
    sites: tuple[str, ...]
    reporter: int = 0


EACH_OTHER = "Ranks wait for each other"
NOT_SUBMITTED = "Operations have waited for up to [12][0-9] s"
HANGS = [
    Hang("absent", 6, NOT_SUBMITTED, ("others", "sleep", "load", "read", "lock")),
    Hang("first_stops", 3, "does not answer", ("others",), reporter=1),
    Hang("first_sleeps", 2, NOT_SUBMITTED, ("others", "sleep")),
    Hang("member_sleeps", 3, NOT_SUBMITTED, ("member_sleeps: others", "sleep"), reporter=1),
    Hang("join", 3, NOT_SUBMITTED, ("others", "sleep")),
    Hang("stop_amid", 3, "waited for up to [12]|made no progress for [12]", ()),
    *(
        Hang(fault, 3, EACH_OTHER, (f"{fault}: culprit", f"{fault}: others"))
        for fault in ("skipped", "extra", "order", "branch", "kind", "barrier", "sets")
    ),
]


@dataclass(frozen=True)
class Report:
    """What a rank wrote of a hang."""

    text: str
    delay_s: float

    @property
    def submitted(self) -> str:
        """Who submitted which operation, and where."""
        return self.text.partition("\nMissing ranks:")[0]

    @property
    def missing(self) -> dict[int, str]:
        """By missing rank what it lacks and where it is."""
        parts = re.split(rf"^rank (\d+) {PEER}: ", self.text, flags=re.M)
        return {int(rank): text for rank, text in zip(parts[1::2], parts[2::2], strict=True)}


def watch(hang: Hang) -> Report:
    """Runs the job until it has reported, and ends it."""
    with plant(hang.fault, hang.num_ranks) as launcher:
        planted = planted_at(launcher, hang.num_ranks)
        prefix = rf"\[{hang.reporter}\]<stderr>:"
        launcher.wait_lines("stderr", prefix + ".*horovod warning")
        launcher.wait_lines("stderr", prefix + "Missing ranks:")
        for site in hang.sites:
            launcher.wait_lines("stderr", rf"{prefix}.*{line_of(site)}\b")
        delay_s = time.monotonic() - planted
        if hang.fault == "absent":
            launcher.wait_lines("stderr", prefix + "  It is stopped")
        own = [line for line in launcher.lines["stderr"] if re.match(prefix, line)]
    return Report("\n".join(re.sub(prefix, "", line, count=1) for line in own), delay_s)


SHUTDOWNS = ("second_sleeps", "first_stops")


def end_by_shutdown_time(fault: str) -> tuple[float, Launcher]:
    """Runs a job of three ranks to its end; returns when the fault began, and the job."""
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2",
    }
    with plant(fault, 3, **times) as launcher:
        planted = planted_at(launcher, 3)
        assert launcher.wait() != 0
    return planted, launcher


def end_by_deadlock_timeout() -> tuple[float, Launcher]:
    """Runs a job of three ranks to its end; returns when the fault began, and the job."""
    with plant("skipped", 3, HOROVOD_DEADLOCK_TIMEOUT="2") as launcher:
        planted = planted_at(launcher, 3)
        launcher.wait()
    return planted, launcher


def outlive_deadlock_timeout(go: Path) -> Launcher:
    """Runs a job of three ranks of which a thread comes late, after the time of a deadlock."""
    with plant("elsewhere", 3, str(go), HOROVOD_DEADLOCK_TIMEOUT="2") as launcher:
        launcher.wait_lines("stderr", "Ranks wait for each other")
        time.sleep(4.0)  # what is tested is that nothing happens
        go.touch()
        launcher.wait()
    return launcher


@dataclass(frozen=True)
class Waiting:
    """All jobs that wait for a deadline; they wait together."""

    reports: dict[str, Future[Report]]
    shutdowns: dict[str, Future[tuple[float, Launcher]]]
    deadlock: Future[tuple[float, Launcher]]
    no_deadlock: Future[Launcher]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    with ThreadPoolExecutor(8) as pool:
        reports = {hang.fault: pool.submit(watch, hang) for hang in HANGS}
        shutdowns = {fault: pool.submit(end_by_shutdown_time, fault) for fault in SHUTDOWNS}
        deadlock = pool.submit(end_by_deadlock_timeout)
        go = tmp_path_factory.mktemp("elsewhere") / "go"
        no_deadlock = pool.submit(outlive_deadlock_timeout, go)
        yield Waiting(reports, shutdowns, deadlock, no_deadlock)


@pytest.fixture
def reports(waiting: Waiting) -> dict[str, Future[Report]]:
    return waiting.reports


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.fault)
def test_a_hang_is_told_in_time(reports: dict[str, Future[Report]], hang: Hang) -> None:
    report = reports[hang.fault].result()
    assert report.delay_s < STALL_LIMIT_S
    assert re.search(hang.headline, report.text.splitlines()[0]), report.text
    if hang.fault != "sets":  # each set tells of its own
        assert report.text.count("Missing ranks:") == 1, report.text


@pytest.mark.parametrize(
    ("fault", "culprit", "culprits", "others"),
    [
        ("skipped", 1, "accuracy", "loss"),
        ("extra", 2, "debug", "loss"),
        ("order", 1, "second", "first"),
        ("branch", 0, "metric", "gradient"),
        ("kind", 1, "allgather.x", "allreduce.x"),
        ("barrier", 1, "barrier.noname", "loss"),
    ],
)
def test_ranks_that_wait_for_each_other(
    reports: dict[str, Future[Report]], fault: str, culprit: int, culprits: str, others: str
) -> None:
    report = reports[fault].result()
    odd_site, other_site = line_of(f"{fault}: culprit"), line_of(f"{fault}: others")
    first, second = sorted({0, 1, 2} - {culprit})
    who = rf"rank {first} {PEER}, rank {second} {PEER} at {other_site}$"
    assert re.search(rf"{others}: submitted by {who}", report.submitted, re.M), report.text
    who = rf"rank {culprit} {PEER} at {odd_site}$"
    assert re.search(rf"{culprits}: submitted by {who}", report.submitted, re.M), report.text
    assert sorted(report.missing) == [0, 1, 2]
    assert re.search(rf"It waits for \S*{culprits} at {odd_site}\.", report.missing[culprit])


def test_ranks_that_wait_for_each_other_in_two_process_sets(
    reports: dict[str, Future[Report]],
) -> None:
    missing = reports["sets"].result().missing
    assert f"waits for allreduce.inner at {line_of('sets: culprit')}." in missing[1]
    assert missing[1].startswith("[allreduce.outer]")


def test_ranks_that_wait_for_each_other_end_after_the_time(waiting: Waiting) -> None:
    planted, launcher = waiting.deadlock.result()
    told = stamps(launcher, "error")
    assert sorted(told) == [0, 1, 2], launcher.lines
    for at, words in told.values():
        error = json.loads(words)
        assert error["kind"] == "StalledError"
        assert "(HOROVOD_DEADLOCK_TIMEOUT)" in error["text"]
        others = line_of("skipped: others")
        who = rf"loss: submitted by rank 0 {PEER}, rank 2 {PEER} at {others}$"
        assert re.search(who, error["text"], re.M), error["text"]
        assert f"It waits for allreduce.accuracy at {line_of('skipped: culprit')}" in error["text"]
        assert 2.0 <= at - planted < STALL_LIMIT_S
    # All ranks hold the report that ends the job; one prints it, below the warning of the first.
    reports = re.findall(r"^\[\d\]<stderr>:Missing ranks:$", launcher.stderr, re.M)
    assert len(reports) == 2, launcher.stderr


def test_a_rank_with_a_thread_elsewhere_is_no_deadlock(waiting: Waiting) -> None:
    launcher = waiting.no_deadlock.result()
    assert launcher.process.returncode == 0, launcher.stderr
    assert "Ranks wait for each other" in launcher.stderr


@pytest.mark.parametrize(
    ("rank", "activity", "sites"),
    [
        (1, r"sleeps \(\d % of a core\)\.", ["sleep"]),
        (2, r"sleeps \(\d % of a core\)\.", ["load", "read"]),
        (3, r"is busy \(\d+ % of a core\)\.", []),
        (4, r"sleeps \(\d % of a core\), and native code keeps the interpreter's lock", ["lock"]),
        (5, r"is stopped: somebody sent it SIGSTOP", []),
    ],
    ids=["sleep", "slow_loader", "busy_loop", "interpreter_lock", "stopped"],
)
def test_where_each_missing_rank_is(
    reports: dict[str, Future[Report]], rank: int, activity: str, sites: list[str]
) -> None:
    report = reports["absent"].result()
    assert sorted(report.missing) == [1, 2, 3, 4, 5]
    assert re.search(rf"submitted by rank 0 {PEER} at {line_of('others')}$", report.submitted, re.M)
    position = report.missing[rank]
    assert position.startswith("[allreduce.loss]")
    assert re.search(f"It {activity}", position), position
    assert f"It last submitted allreduce.ready at {line_of('ready')}, " in position
    for site in sites:
        assert re.search(rf"^ +{line_of(site)} in \w+$", position, re.M), position
    if rank == 3:  # in one of the two lines of the loop
        assert re.search(rf"{RANK}:\d+ in loop\n", position), position


def test_the_coordinator_sleeps_itself(reports: dict[str, Future[Report]]) -> None:
    missing = reports["first_sleeps"].result().missing
    assert list(missing) == [0]
    assert "It sleeps" in missing[0]
    assert f"{line_of('sleep')} in sleep" in missing[0]


def test_the_coordinator_is_stopped(reports: dict[str, Future[Report]]) -> None:
    report = reports["first_stops"].result()
    assert list(report.missing) == [0]
    assert "It is stopped: somebody sent it SIGSTOP" in report.missing[0]
    assert re.search(rf"loss: submitted by rank 1 {PEER} at {line_of('others')}", report.submitted)


def test_a_member_of_a_process_set_sleeps(reports: dict[str, Future[Report]]) -> None:
    missing = reports["member_sleeps"].result().missing
    assert list(missing) == [2]
    assert missing[2].startswith("[allreduce.inner]")
    assert f"{line_of('sleep')} in sleep" in missing[2]


def test_a_rank_in_join_does_not_blame_those_that_wait(
    reports: dict[str, Future[Report]],
) -> None:
    missing = reports["join"].result().missing
    assert list(missing) == [1]
    lacks = missing[1].splitlines()[0]
    assert sorted(lacks.strip("[]").split(", ")) == ["allreduce.loss", "join.noname"]
    assert f"{line_of('sleep')} in sleep" in missing[1]


def test_a_rank_is_stopped_amid_an_operation(reports: dict[str, Future[Report]]) -> None:
    assert "It is stopped" in reports["stop_amid"].result().missing[1]


# --- Settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "errors", "culprit", "site"),
    [("second_sleeps", [0, 2], 1, "sleep"), ("first_stops", [1, 2], 0, "others")],
)
def test_the_shutdown_time_ends_the_job(
    waiting: Waiting, fault: str, errors: list[int], culprit: int, site: str
) -> None:
    planted, launcher = waiting.shutdowns[fault].result()
    told = stamps(launcher, "error")
    assert sorted(told) == errors, launcher.lines
    for at, words in told.values():
        error = json.loads(words)
        assert error["kind"] == "StalledError"
        assert re.search(rf"Missing ranks:\nrank {culprit} {PEER}: \[allreduce", error["text"])
        assert line_of(site) in error["text"]
        assert 2.0 <= at - planted < STALL_LIMIT_S


def test_a_stall_check_that_is_disabled_tells_nothing() -> None:
    with plant("skipped", 3, HOROVOD_STALL_CHECK_DISABLE="1") as silent:
        planted_at(silent, 3)
        with plant("skipped", 3) as telling:  # planted later, so that the other one had the time
            planted_at(telling, 3)
            telling.wait_lines("stderr", "Missing ranks:")
        assert silent.lines["stderr"] == []


# --- Ranks that end ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "culprit", "kind", "words", "site"),
    [
        ("killed", 1, "PeerLostError", "was lost: its process died", "others"),
        ("first_killed", 0, "PeerLostError", "was lost: its process died", "others"),
        ("exits", 1, "PeerLostError", "was lost: its process died", "others"),
        ("raises", 1, "ShutDownError", "it raised RuntimeError at .*: planted", "raises"),
        ("one_less", 1, "ShutDownError", "its process ended", "one_less: others"),
    ],
)
def test_a_rank_that_ends_is_named_on_all_others(
    fault: str, culprit: int, kind: str, words: str, site: str
) -> None:
    with plant(fault, 3) as launcher:
        planted = planted_at(launcher, 3)
        assert launcher.wait() != 0
    told = stamps(launcher, "error")
    assert sorted(told) == sorted({0, 1, 2} - {culprit}), launcher.lines
    for at, error in told.values():
        assert json.loads(error)["kind"] == kind
        assert re.search(rf"rank {culprit} {PEER}.*{words}", json.loads(error)["text"])
        assert at - planted < LOSS_LIMIT_S
        if fault == "raises":
            assert line_of("raises") in json.loads(error)["text"]
    # A rank may die before another one has the result of what both took part in.
    sites = [site, "ready"] if kind == "PeerLostError" else [site]
    numbers = "|".join(line_of(marker).rpartition(":")[2] for marker in sites)
    assert re.search(rf'"{RANK}", line ({numbers}), in ', launcher.stderr)


def test_an_operation_more_than_the_others_have() -> None:
    with plant("one_more", 3) as launcher:
        assert launcher.wait() != 0
    ((rank, (_, error)),) = stamps(launcher, "error").items()
    assert rank == 1
    assert "allreduce.one_more failed: rank" in json.loads(error)["text"]
    assert "has shut Horovod down (its process ended)" in json.loads(error)["text"]
    file, _, number = line_of("one_more").rpartition(":")
    assert f'[1]<stderr>:  File "{file}", line {number}, in one_more' in launcher.stderr
    assert (
        "exited with code 0 while rank 1 still needed it; rank 1 on localhost exited with code 1"
        in (launcher.stderr)
    )


# --- What a rank reports of its end -------------------------------------------------------------

# Nothing reaches stderr, and the rank that fails first ends last.
SILENT = """
import atexit, os, sys, time
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
if os.environ["HOROVOD_RANK"] == "1":
    atexit.register(time.sleep, 0.5)
from horovod._rank import context
context.init()
context.global_group().barrier().wait()
if context.rank() == 1:
    raise ValueError("bad batch")
context.global_group().barrier().wait()
"""


def test_the_first_failure_is_known_without_a_word_on_stderr() -> None:
    with launched("-np", "2", sys.executable, "-c", SILENT) as launcher:
        assert launcher.wait() == 1
        assert "rank 1 on" in launcher.stderr
        assert "it raised ValueError at <string>:10: bad batch" in launcher.stderr
        assert re.search(r"rank 1 exited with code 1 first; rank 0 .*lost a peer", launcher.stderr)
