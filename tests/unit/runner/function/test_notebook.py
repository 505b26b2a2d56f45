"""Code of cells on the ranks, and their names in tracebacks."""

from __future__ import annotations

import linecache
import pickle
import sys
import types
from typing import Any

import pytest

from horovod.runner.function import task
from horovod.runner.function.notebook import is_notebook, name_cells

CELL = "/tmp/ipykernel_1/2.py"
TEXT = "def broken():\n    return [][3]\n"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of a cell, whose lines IPython keeps beside those of another cell."""
    for name in (CELL, "/tmp/ipykernel_1/3.py"):
        entry = (len(TEXT), None, TEXT.splitlines(keepends=True), name)
        monkeypatch.setitem(linecache.cache, name, entry)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(TEXT, CELL, "exec"), names)
    return names["broken"]


def test_a_rank_shows_the_line_of_a_cell(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = task.pack_function(broken, (), {}, [])
    assert list(pickle.loads(payload)[1]) == [CELL]  # the other cell is not in the call
    monkeypatch.setattr(linecache, "cache", {})  # that of a rank
    with pytest.raises(IndexError) as caught:
        task._call(payload)
    assert "    return [][3]\n" in task._traceback_of(caught.value)


def test_the_frames_around_a_function_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("inside")

    told: list[str] = []
    payload = task.pack_function(fail, (), {}, [])
    monkeypatch.setattr(task, "_exchange", lambda config, ask: ask(_Store(payload, told)))
    with pytest.raises(ValueError, match="inside"):
        task.main()
    assert task.__file__ not in told[0]
    assert "in fail\n" in told[0]


class _Store:
    """What a rank gets, and where it leaves its error."""

    def __init__(self, payload: bytes, told: list[str]) -> None:
        self._payload, self._told = payload, told

    def get(self, key: str, timeout_s: float) -> bytes:
        return self._payload

    def set(self, key: str, value: bytes) -> None:
        self._told.append(value.decode())


def test_cells_have_the_names_of_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'  File "{CELL}", line 2, in broken\n  File "train.py", line 3, in train\n'
    assert not is_notebook()
    assert name_cells(text) == text
    naming = types.SimpleNamespace(
        format_code_name=lambda name: ("Cell", "In[7]") if name == CELL else None
    )
    shell = types.SimpleNamespace(kernel=object(), compile=naming)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    assert is_notebook()
    cell, file = name_cells(text).splitlines()
    assert cell == "  Cell In[7], line 2, in broken"
    assert file == '  File "train.py", line 3, in train'
