"""The line of the script that messages name, also where programs make files without end."""

from __future__ import annotations

import os

from horovod._train import call_site

# A function of the package between the script and the question, as each collective is.
_INSIDE = os.path.join(os.path.dirname(os.path.abspath(call_site.__file__)), "inside.py")
_CODE = compile("def inside(): return call_site()", _INSIDE, "exec")


def _asked_from(file_name: str, line: int) -> str:
    names: dict[str, object] = {"call_site": call_site.call_site}
    exec(_CODE, names)
    exec(compile("\n" * (line - 1) + "site = inside()", file_name, "exec"), names)
    return str(names["site"])


def test_each_line_of_a_script_is_named() -> None:
    assert _asked_from("train.py", 3) == "train.py:3"
    assert _asked_from("train.py", 12) == "train.py:12"
    assert _asked_from("other.py", 3) == "other.py:3"
    for package in ("torch/_dynamo", "jax/_src"):
        compiler = os.sep.join(["", "site", *package.split("/"), "wrapped.py"])
        assert _asked_from(compiler, 1).startswith(__file__)


def test_two_calls_in_one_function_are_told_apart() -> None:
    names: dict[str, object] = {"call_site": call_site.call_site}
    exec(_CODE, names)
    lines = ["def both():", " return [", "  inside(),", "  inside(),", " ]", "x = both() + both()"]
    exec(compile("\n".join(lines), "train.py", "exec"), names)
    assert names["x"] == ["train.py:3", "train.py:4"] * 2


def test_memory_of_files_has_a_limit_and_forgets_nothing_that_matters() -> None:
    for number in range(call_site._MOST_FILES + 10):
        assert _asked_from(f"<cell {number}>", 2) == f"<cell {number}>:2"
    assert len(call_site._belongs_to_script) <= call_site._MOST_FILES
    assert len(call_site._sites) <= call_site._MOST_SITES
    assert _asked_from("train.py", 3) == "train.py:3"
