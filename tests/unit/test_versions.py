"""What ``benchmarks/versions.py`` is asked for, and how it shows what it measured."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "versions.py"


@pytest.fixture(name="versions")
def _versions(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("versions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "versions", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_words_sizes_and_ranks(versions: Any) -> None:
    assert versions.wanted_rows(["mlp", "4", "many@4"]) == ["mlp", "4", "many@4"]
    rows = versions.wanted_rows(["data-plane"])
    assert {"4", "268435456", "4@4", "268435456@4", "many", "grouped", "resnet"} <= set(rows)
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("word", ["mpl", "3", "-4", "4@", "4@1", "4@x", "", "@4", "4@4@4"])
def test_what_stands_for_nothing_is_refused(versions: Any, word: str) -> None:
    with pytest.raises(SystemExit, match="cannot be measured") as refused:
        versions.wanted_rows([word])
    assert "@N behind it for N ranks" in str(refused.value)


def test_a_row_has_medians_and_quartiles_of_both_versions_and_of_their_ratio(versions: Any) -> None:
    row = versions.Row("4", 10, [1e-6, 2e-6, 3e-6], [2e-6, 2e-6, 6e-6])
    assert row.show() == (
        "| 4 | 2.0 (1.0 to 3.0) µs | 2.0 (2.0 to 6.0) µs | 2.000 | 1.00 to 2.00 |"
    )


def test_a_column_for_turns_with_cores_at_their_best(versions: Any) -> None:
    times = {"before_s": [2e-6, 2e-6, 2e-6], "after_s": [1e-6, 2e-6, 4e-6]}
    cores_us = [[10.0, 100.0], [14.0, 110.0], [10.0, 150.0]]  # the last one computes slowly
    rows = [{"what": "4", "rounds": 9, **times, "cores_us": cores_us}]
    shown = versions.show_report({"load_average": 0.5, "rows": rows})
    assert "; at best, the cores took 10 and 100 µs\n" in shown
    assert shown.endswith("| 1.5 µs in 2 of 3 |")
    columns = [line.count("|") for line in shown.splitlines()[2:]]
    assert columns == [7, 7, 7]


def test_several_jobs_make_one_row(versions: Any) -> None:
    first = versions.Row("4", 10, [1e-6, 2e-6], [1e-6, 1e-6])
    row = first.joined(versions.Row("4", 12, [3e-6], [2e-6]))
    assert row == versions.Row("4", 10, [1e-6, 2e-6, 3e-6], [1e-6, 1e-6, 2e-6])
