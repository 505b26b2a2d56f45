"""``horovodrun doctor``: what in a script and its environment means something else than before.

The script is read, never executed.
"""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING, Any

from horovod._compat.absent import TO_COME, hint_for
from horovod._settings import TABLE
from horovod._settings.advice import unknown_names
from horovod._settings.reader import SettingsReader
from horovod._settings.setting import Status
from horovod.errors import StartError, UsageError
from horovod.runner.doctor.exports import arguments_of, exported_names, module_file
from horovod.runner.doctor.frameworks import LEGACY, examine_frameworks
from horovod.runner.doctor.interface_028 import fate_of_variable
from horovod.runner.doctor.rules import (
    ARGUMENTS,
    CALLS,
    FIRST_ARGUMENTS,
    MISSING_NAMES,
    Level,
    Remark,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horovod._rank.libraries.gpu import Search

_PREFIXES = ("HOROVOD_", "_HOROVOD_")
_READING = ("get", "getenv")
_SETTING = ("setdefault", "putenv")


def examine_environment(environ: Mapping[str, str]) -> list[Remark]:
    """Return a remark on each HOROVOD_… variable that is set."""
    return [
        remark_on_setting("environment", name, environ[name])
        for name in sorted(environ)
        if name.startswith(_PREFIXES)
    ]


def examine_libraries(environ: Mapping[str, str]) -> list[Remark]:
    """Which libraries for GPUs are found here, if a variable that is set is about them."""
    names = ("HOROVOD_CUDA_LIBRARY", "HOROVOD_NCCL_LIBRARY", "HOROVOD_GPU_OPERATIONS")
    cuda, nccl, operations = (environ.get(name, "").strip() for name in names)
    if not (cuda or nccl or operations):
        return []
    # Loads the engine, which a launcher does without.
    from horovod._rank.libraries import gpu

    found: list[tuple[str, gpu.Search[Any]]] = [(names[0], gpu.find_driver(cuda))]
    if operations.lower() != "staged":
        found.append((names[1], gpu.find_nccl(nccl)))
    return [_on_library(name, search) for name, search in found]


def _on_library(name: str, search: Search[Any]) -> Remark:
    library = search.found
    if library is None:
        return Remark("this host", Level.FAILS, f"{name}: {search.problem}")
    warning = getattr(library, "warning", "")
    level = Level.CHANGED if warning else Level.HONORED
    text = f"{library.title} is {library.path}{f' ({warning})' if warning else ''}"
    return Remark("this host", level, text)


def examine_script(text: str, path: str, environ: Mapping[str, str] | None = None) -> list[Remark]:
    """Return remarks on changed, removed and ineffective parts of a script, in line order.

    Args:
        text: the script.
        path: its name, for messages.
        environ: the variables that it will find; none if None.

    Raises:
        UsageError: it is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise UsageError(f"{path}:{line}: not Python: {getattr(error, 'msg', error)}") from None
    reading = _Reading(path)
    reading.visit(tree)
    found = [
        *reading.remarks,
        *examine_frameworks(tree, path, keras_2=_uses_keras_2(text, environ or {})),
    ]
    return [remark for _, remark in sorted(found, key=lambda each: each[0])]


def _uses_keras_2(text: str, environ: Mapping[str, str]) -> bool:
    """Whether tf.keras is to be Keras 2; a script that sets the variable does so to turn it on."""
    return environ.get(LEGACY, "").lower() in ("1", "true") or LEGACY in text


def remark_on_setting(place: str, name: str, value: str | None) -> Remark:
    """Return the remark on a variable; its value is None if only a run could determine it."""
    setting = TABLE.get(name)
    if setting is None:
        unknown = unknown_names([name]) or [f"{name} is not a setting"]
        return Remark(place, Level.IGNORED, unknown[0])
    if value is not None:
        try:
            SettingsReader({name: value}).value(name)
        except StartError as error:
            return Remark(place, Level.FAILS, str(error))
    rule = fate_of_variable(setting)
    between = " " if setting.status in (Status.BUILD, Status.PLACE) else ": "
    return Remark(place, rule.level, f"{name}{between}{rule.text}")


class _Reading(ast.NodeVisitor):
    """Walks over a script and collects remarks with their lines."""

    def __init__(self, path: str) -> None:
        self.remarks: list[tuple[int, Remark]] = []
        self._path = path
        # What a name stands for: in full, such as horovod.torch, or horovod.torch.allreduce.
        self._meanings: dict[str, str] = {}

    def _say(self, node: ast.AST, level: Level, text: str) -> None:
        line = getattr(node, "lineno", 0)
        remark = Remark(f"{self._path}:{line}", level, text)
        if (line, remark) not in self.remarks:
            self.remarks.append((line, remark))

    # -- imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in ("horovod", "os"):
                bound = alias.asname or alias.name.split(".")[0]
                self._meanings[bound] = alias.name if alias.asname else bound
                self._check_module(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.split(".")[0] not in ("horovod", "os"):
            return
        exists = self._check_module(node, module)
        for alias in node.names:
            meaning = f"{module}.{alias.name}"
            self._meanings[alias.asname or alias.name] = meaning
            if exists and alias.name != "*" and module != "os" and module_file(meaning) is None:
                self._check_name(node, module, alias.name)

    def _check_module(self, node: ast.AST, name: str) -> bool:
        if name.split(".")[0] != "horovod" or module_file(name) is not None:
            return True
        hint = hint_for(name) or "Horovod has no such module"
        self._say(node, Level.FAILS, f"there is no module {name}: {hint}")
        return False

    def _check_name(self, node: ast.AST, module: str, name: str) -> None:
        known = exported_names(module)
        if name in known or name.startswith("__"):
            return
        hint = TO_COME.get(f"{module}.{name}") or MISSING_NAMES.get(name) or _similar(name, known)
        self._say(node, Level.FAILS, f"{module} has no {name}{hint and f': {hint}'}")

    # -- uses

    def _meaning_of(self, node: ast.AST) -> str:
        """Return the full name that an expression refers to; empty if it is not Horovod's."""
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self._meaning_of(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = self._meaning_of(node.value)
        name = f"{owner}.{node.attr}"
        if owner.split(".")[0] == "horovod" and module_file(owner) and not module_file(name):
            self._check_name(node, owner, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        meaning = self._meaning_of(node.func)
        module, _, function = meaning.rpartition(".")
        if meaning.startswith("os."):
            self._check_environment_call(node, meaning)
        elif module.split(".")[0] == "horovod" and function in exported_names(module):
            self._check_call(node, module, function)
        self.generic_visit(node)

    def _check_call(self, node: ast.Call, module: str, function: str) -> None:
        if rule := CALLS.get(function):
            self._say(node, rule.level, f"{function}() {rule.text}")
        if node.args and (rule := ARGUMENTS.get((function, FIRST_ARGUMENTS.get(function, "")))):
            self._say(node, rule.level, f"{function}({FIRST_ARGUMENTS[function]}): {rule.text}")
        known = _run_arguments() if module == "horovod" else arguments_of(module, function)
        for keyword in node.keywords:
            name = keyword.arg
            if name is None or _is_default(keyword.value, function):
                continue
            if rule := ARGUMENTS.get((function, name)):
                self._say(keyword.value, rule.level, f"{function}({name}=…): {rule.text}")
            elif known is not None and name not in known:
                hint = _similar(name, known)
                text = f"{function}() has no argument {name}{hint and f': {hint}'}"
                self._say(keyword.value, Level.FAILS, text)

    # -- the environment

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and (name := self._variable_of(node)):
            self._on_reading(node, name)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if name := self._variable_of(target):
                self._on_setting(target, name, _text(node.value))
        self.generic_visit(node)

    def _variable_of(self, node: ast.AST) -> str:
        """The variable that an expression such as ``os.environ["X"]`` names; empty for others."""
        if isinstance(node, ast.Subscript) and self._meaning_of(node.value) == "os.environ":
            return _text(node.slice) or ""
        return ""

    def _check_environment_call(self, node: ast.Call, meaning: str) -> None:
        function = meaning.rpartition(".")[2]
        if meaning == "os.environ.update":
            for name, value in _pairs(node):
                self._on_setting(node, name, value)
        elif node.args and (variable := _text(node.args[0])):
            if function in _SETTING:
                value = _text(node.args[1]) if len(node.args) > 1 else None
                self._on_setting(node, variable, value)
            elif function in _READING:
                self._on_reading(node, variable)

    def _on_setting(self, node: ast.AST, name: str, value: str | None) -> None:
        if name.startswith(_PREFIXES):
            remark = remark_on_setting("", name, value)
            self._say(node, remark.level, remark.text)

    def _on_reading(self, node: ast.AST, name: str) -> None:
        """Remark on a variable that a script reads if no launcher sets it."""
        if name.startswith(_PREFIXES) and name not in TABLE:
            self._say(node, Level.IGNORED, remark_on_setting("", name, None).text)


def _pairs(call: ast.Call) -> Iterator[tuple[str, str | None]]:
    """The variables that a call of update() sets."""
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                name = None if key is None else _text(key)
                if name is not None:
                    yield name, _text(value)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, _text(keyword.value)


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_default(node: ast.AST, function: str) -> bool:
    """Whether an argument says what holds without it, too; run() takes no for an answer, too."""
    if not isinstance(node, ast.Constant):
        return False
    return node.value is None or (function == "run" and node.value is False)


def _run_arguments() -> frozenset[str] | None:
    """horovod.run is looked up lazily, so the package's own file does not define it."""
    return arguments_of("horovod.runner.function.run", "run")


def _similar(name: str, known: frozenset[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"did you mean {matches[0]}?" if matches else ""


def report(remarks: list[Remark]) -> tuple[str, int]:
    """Return the output of ``horovodrun doctor``, and its exit code: 1 if something will fail."""
    num_fails = sum(remark.level is Level.FAILS for remark in remarks)
    num_others = sum(
        remark.level in (Level.DEPRECATED, Level.CHANGED, Level.IGNORED) for remark in remarks
    )
    last = (
        f"{num_fails} will fail, {num_others} changed or lost their meaning"
        if num_fails or num_others
        else "nothing to change for Horovod"
    )
    return "\n".join([*map(str, remarks), last]), 1 if num_fails else 0
