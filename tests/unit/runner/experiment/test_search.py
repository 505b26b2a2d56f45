"""Runs that are chosen at random, and those that are not worth more time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.job_file import parse_job_file
from horovod.runner.experiment.schema import Between, Search

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("optuna")

from horovod.runner.experiment.pruning import Pruning
from horovod.runner.experiment.search import sampled


def bounds(low: str, high: str, log: str = "false") -> dict[str, Between]:
    return {"x": Between.model_validate({"min": low, "max": high, "log": log})}


def test_runs_are_chosen_at_random_and_the_same_each_time() -> None:
    search = Search(method="random", runs=200, seed=7)
    between = bounds("1e-5", "0.1", "true") | {"n": Between(min="16", max="64")}
    runs = sampled({"kind": ["a", "b"]}, between, search)
    assert runs == sampled({"kind": ["a", "b"]}, between, search)
    assert runs != sampled({"kind": ["a", "b"]}, between, Search(method="random", runs=200))
    assert list(runs[0]) == ["kind", "n", "x"]
    assert {run["kind"] for run in runs} == {"a", "b"}
    assert {int(run["n"]) for run in runs} <= set(range(16, 65))
    rates = sorted(float(run["x"]) for run in runs)
    assert 1e-5 <= rates[0] < rates[100] < 3e-3 < rates[-1] <= 0.1  # most of them are small


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [
        ("a", "2", "false"),
        ("2", "1", "false"),
        ("0", "1", "true"),
        ("0.0", "inf", "false"),
        ("2.5", "1", "false"),
    ],
)
def test_bounds_that_make_no_sense(low: str, high: str, log: str) -> None:
    with pytest.raises(ValueError, match=f"there is nothing between {low} and {high}"):
        sampled({}, bounds(low, high, log), Search(method="random"))


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ({"min": "0", "max": "10"}, "whole"),
        ({"min": "0", "max": "2", "type": "int"}, "whole"),
        ({"min": "0", "max": "1", "type": "int"}, "whole"),
        ({"min": "1", "max": "1", "type": "int"}, "whole"),
        ({"min": "0", "max": "1", "type": "float"}, "fractions"),
        ({"min": "0.0", "max": "1"}, "fractions"),
        ({"min": "0", "max": "1.5"}, "fractions"),
        ({"min": "0", "max": "1"}, "no whole number between 0 and 1: write type: float"),
        ({"min": "7", "max": "8"}, "no whole number between 7 and 8: write type: float"),
        ({"min": "3", "max": "3"}, "no whole number between 3 and 3: write type: float"),
        ({"min": "0", "max": "1.5", "type": "int"}, "must be whole numbers for type: int"),
    ],
)
def test_whole_numbers_and_those_between_them(between: dict[str, str], expected: str) -> None:
    search = Search(method="random", runs=50)
    given = {"x": Between.model_validate(between)}
    if expected not in ("whole", "fractions"):
        with pytest.raises(ValueError, match=expected):
            sampled({}, given, search)
        return
    chosen = [run["x"] for run in sampled({}, given, search)]
    assert all(float(between["min"]) <= float(x) <= float(between["max"]) for x in chosen)
    assert all(x.isdecimal() for x in chosen) == (expected == "whole")


def report(folder: Path, *values: object) -> None:
    text = "".join(json.dumps({"metrics": {"loss": value, "n": 1}}) + "\n" for value in values)
    record.write(folder / record.RESULTS, text, append=True)


def test_a_run_that_others_surpass_is_pruned(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha", min_results=2), "loss", "min")
    first, second = pruning.follow(tmp_path / "1"), pruning.follow(tmp_path / "2")
    assert first.why_in_vain() == ""
    report(tmp_path / "1", 0.9, "none", 0.5)
    assert first.why_in_vain() == ""
    report(tmp_path / "2", 7.0)
    assert second.why_in_vain() == ""  # it is judged after two results
    report(tmp_path / "2", 0.6)
    assert second.why_in_vain() == "the run is pruned: others are better than loss=0.6 in result 2"
    second.end()
    first.end()
    third = pruning.follow(tmp_path / "3")
    report(tmp_path / "3", 0.4, 0.3)
    assert third.why_in_vain() == ""
    third.end()


def test_results_of_a_failed_attempt_are_not_those_of_the_next_one(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha", min_results=2), "loss", "min")
    first, second = pruning.follow(tmp_path / "1"), pruning.follow(tmp_path / "2")
    report(tmp_path / "1", 0.5, 0.5)
    assert first.why_in_vain() == ""
    lines = [(1, 0.9), (2, 0.8), (1, 0.9), (2, 0.4)]  # of two attempts, each reports twice
    for attempt, loss in lines[:2]:
        reported = json.dumps({"line": 1, "attempt": attempt, "metrics": {"loss": loss}})
        record.write(tmp_path / "2" / record.RESULTS, reported + "\n", append=True)
    assert second.why_in_vain() == ""  # one result of each attempt
    for attempt, loss in lines[2:]:
        reported = json.dumps({"line": 1, "attempt": attempt, "metrics": {"loss": loss}})
        record.write(tmp_path / "2" / record.RESULTS, reported + "\n", append=True)
    assert second.why_in_vain() == ""  # 0.4 is the second result of the second attempt
    second.end()


def test_the_next_attempt_does_not_compete_with_the_failed_one(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha"), "loss", "min")
    run = pruning.follow(tmp_path)
    for attempt, loss in ((1, 0.1), (2, 0.9)):
        reported = json.dumps({"line": 1, "attempt": attempt, "metrics": {"loss": loss}})
        record.write(tmp_path / record.RESULTS, reported + "\n", append=True)
        assert run.why_in_vain() == ""
    other = pruning.follow(tmp_path / "other")
    report(tmp_path / "other", 0.5)  # worse than the attempt that failed, best of those that count
    assert other.why_in_vain() == ""


def test_a_resumed_run_is_not_judged_by_what_an_earlier_attempt_reported(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha"), "loss", "min")
    report(tmp_path / "1", 0.5)
    pruning.follow(tmp_path / "1").end()
    report(tmp_path / "2", 7.0)
    resumed = pruning.follow(tmp_path / "2", attempt=2)
    assert resumed.why_in_vain() == ""
    reported = json.dumps({"line": 1, "attempt": 2, "metrics": {"loss": 0.4}})
    record.write(tmp_path / "2" / record.RESULTS, reported + "\n", append=True)
    assert resumed.why_in_vain() == ""


def test_all_that_a_run_has_reported_counts_in_later_comparisons(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha", reduction=2), "loss", "min")
    report(tmp_path / "1", 0.5, 0.3)
    pruning.follow(tmp_path / "1").end()
    report(tmp_path / "2", 0.6, 0.1)  # poor in the first result, which came before that of run 1
    pruning.follow(tmp_path / "2").end()
    report(tmp_path / "3", 0.4, 0.2)
    assert "loss=0.2 in result 2" in pruning.follow(tmp_path / "3").why_in_vain()


def test_what_was_done_before_counts_when_an_experiment_is_resumed(tmp_path: Path) -> None:
    pruning = Pruning(Search(method="asha"), "loss", "min")
    report(tmp_path / "1", 0.5)
    pruning.follow(tmp_path / "1").end()
    pruning.follow(tmp_path / "2").end()  # it had no result
    last = pruning.follow(tmp_path / "3")
    report(tmp_path / "3", 0.6)
    assert "loss=0.6" in last.why_in_vain()


def test_a_search_has_the_runs_that_it_asks_for() -> None:
    text = "version: 2\nproject: p\ntrain:\n  run: a {{x}} {{y}}\n  search: random\n"
    text += "  parameters:\n    x: {between: {min: 1, max: 9}}\n    y: [1, 2]\n"
    experiment = parse_job_file(text, "job.yml")
    assert len(experiment.runs) == 10
    again = parse_job_file(experiment.canonical, "job.yml")
    assert [run.lines for run in again.runs] == [run.lines for run in experiment.runs]
    with pytest.raises(
        UsageError, match=r"job.yml:5:3: train.search: there is nothing between 1 and 0"
    ):
        parse_job_file(text.replace("max: 9", "max: 0"), "job.yml")
