"""What ARCHITECTURE lists as the way of an allreduce and of a setting is what the code does.

Compilers inline as they like, so what a debugger shows of a stack depends on the build. What the
code says does not: a stack is right if each of its functions calls the next one itself.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FRAMES = 17
NUMBERED = re.compile(r"^ *\d+\. (.*(?:\n +\S.*)*)", re.MULTILINE)
IN_A_FILE = re.compile(r"((?:`[\w:.]+`,? )+)\(`([\w/.]+)`\)")
STACK = re.compile(r"(\w+), (\d+) frames: ")


class Frame(NamedTuple):
    """A function, ``Class::name``, ``hvd.name`` or ``name``, and the file that defines it."""

    function: str
    file: str

    @property
    def owner(self) -> str:
        """The class that it is a method of, or an empty string."""
        return self.function.replace("::", ".").rpartition(".")[0].replace("hvd", "")

    @property
    def name(self) -> str:
        """Without its class."""
        return self.function.replace("::", ".").rpartition(".")[2]


def lines(life: str) -> list[str]:
    """The numbered lines of a section "Life of ..."."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split(f"## Life of {life}", 1)[1].split("\n## ", 1)[0]
    return [re.sub(r"\s+", " ", line) for line in NUMBERED.findall(section)]


def frames_of(line: str) -> list[Frame]:
    """The functions that a line names with a file, in order."""
    return [
        Frame(function, file)
        for functions, file in IN_A_FILE.findall(line)
        for function in re.findall(r"`([\w:.]+)`", functions)
    ]


def stacks() -> dict[str, tuple[int, list[Frame]]]:
    """By first word, the stacks of an allreduce: the count that is claimed, the frames."""
    found: dict[str, tuple[int, list[Frame]]] = {}
    for line in lines("an allreduce"):
        if begins := STACK.match(line):
            stack: list[Frame] = []
            found[begins[1]] = int(begins[2]), stack
        stack += frames_of(line)
    return found


def body_of(frame: Frame) -> str | None:
    """The text between the braces of a function, or the lines of one in Python; None without."""
    text = read(ROOT / frame.file)
    if frame.file.endswith(".py"):
        return python_body(text, frame)
    qualified = rf"\b{frame.owner}::{frame.name}" if frame.owner else rf"^\S[^;\n]* {frame.name}"
    if defined := braces_behind(text, qualified):
        return defined
    inside = re.search(rf"^(?:class|struct) {frame.owner}\b[^;{{]*{{.*?^}};", text, re.M | re.S)
    return braces_behind(inside[0], rf"\w {frame.name}") if inside and frame.owner else None


def braces_behind(text: str, function: str) -> str | None:
    """What the definition of a function holds; the style puts its braces where this looks."""
    pattern = rf"{function}\([^;{{}}]*\)[^;{{}}()]*{{(.*)"
    for defined in re.finditer(pattern, text, re.MULTILINE):
        first = defined[1]
        if first.endswith("}"):
            return first
        indent = re.match(" *", text[text.rfind("\n", 0, defined.start()) + 1 :])
        end = re.compile(rf"^{indent[0] if indent else ''}}}", re.MULTILINE)
        if closing := end.search(text, defined.end()):
            return text[defined.start(1) : closing.start()]
    return None


def python_body(text: str, frame: Frame) -> str | None:
    """The source of a function, or of a method of its class."""
    scope: ast.AST = ast.parse(text)
    if frame.owner:
        classes = [node for node in ast.walk(scope) if isinstance(node, ast.ClassDef)]
        named = [node for node in classes if node.name == frame.owner]
        if not named:
            return None
        scope = named[0]
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef) and node.name == frame.name:
            return "\n".join(ast.unparse(statement) for statement in node.body)
    return None


@cache
def read(path: Path) -> str:
    """A file's text without comments of C++."""
    return re.sub(r"(?m)//.*$", "", path.read_text())


def calls(caller: Frame, callee: Frame) -> bool:
    """Whether a function itself calls another one of this name."""
    body = body_of(caller)
    return body is not None and bool(re.search(rf"\b{callee.name}\(", body))


@pytest.mark.parametrize("life", ["an allreduce", "a setting"])
def test_the_frames_exist(life: str) -> None:
    for line in lines(life):
        assert frames_of(line), f"no function with its file: {line}"
        for frame in frames_of(line):
            assert body_of(frame) is not None, frame


@pytest.mark.parametrize("begin", ["Submit", "Execute", "Answer"])
def test_each_frame_of_an_allreduce_calls_the_next(begin: str) -> None:
    count, stack = stacks()[begin]
    broken = [pair for pair in pairwise(stack) if not calls(*pair)]
    assert not broken, "a function lies between"
    assert count == len(stack) <= MOST_FRAMES


def test_the_stacks_hang_together() -> None:
    """The stack of an answer begins in the one that executes; that one ends in a system call."""
    execute, answer = stacks()["Execute"][1], stacks()["Answer"][1]
    assert answer[0] in execute
    assert "sendmsg(" in (body_of(execute[-1]) or "")


def test_a_frame_that_does_not_exist_or_is_left_out_is_noticed() -> None:
    assert body_of(Frame("Engine::no_such_function", "native/engine/engine.cc")) is None
    assert body_of(Frame("Group.no_such_function", "src/horovod/_rank/group.py")) is None
    *_, advance, try_step, send, _, _ = stacks()["Execute"][1]
    assert calls(advance, try_step)
    assert not calls(advance, send)


def test_a_setting_goes_from_the_launcher_to_the_engine() -> None:
    files = [frames_of(line)[0].file for line in lines("a setting")]
    assert files[0] == "src/horovod/runner/settings/flags.py"
    assert files[-1].startswith("native/")
