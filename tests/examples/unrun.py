"""What can be said of a command without running it: whether what it names exists.

    fault_of("make tset")                       "make has no target tset"
    fault_of("horovodrun --no-such-flag true")  "unknown option --no-such-flag; see ..."

A part in capitals or an ellipsis (``…``) stands for a value.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout

from pages import ROOT, files_of

from horovod.errors import UsageError
from horovod.runner.cli.options import parse

# Reads the arguments of a script as the script itself does, and ends it there.
_READ_ARGUMENTS = """
import argparse, json, pathlib, runpy, sys, traceback

class Read(Exception):
    pass

def ending(read):
    def parse(*args, **more):
        read(*args, **more)
        raise Read
    return parse

argparse.ArgumentParser.parse_args = ending(argparse.ArgumentParser.parse_args)
for words in json.loads(sys.argv[1]):
    sys.argv = words
    sys.path.insert(0, str(pathlib.Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
        print("it reads no arguments", file=sys.stderr)
    except Read:
        print(" ".join(words))
    except (Exception, SystemExit):
        traceback.print_exc(limit=1)
"""
DEADLINE_S = 120.0


def words_of(command: str) -> list[str]:
    """Program and arguments, without comment and without variables in front."""
    words = shlex.split(command, comments=True)
    while words and re.match(r"\w+=", words[0]):
        del words[0]
    return words


def fault_of(command: str, page: str = "README.md") -> str:
    """What is wrong with a command; nothing if everything that it names exists."""
    program, *words = words_of(command) or [""]
    if program == "export" or not program:
        return ""
    if program in _CHECKS:
        return _CHECKS[program](words, page)
    target = program.rpartition("/")[2]
    made = "".join(path.read_text() for path in (ROOT / "native").rglob("CMakeLists.txt"))
    if program.startswith("build/native/") and f"add_executable({target}" in made:
        return ""
    return f"nothing is known of the program {program}"


def _horovodrun(words: list[str], page: str) -> str:
    if words[:1] == ["doctor"]:
        return "" if len(words) < 3 else "doctor takes one script here"
    try:
        with redirect_stdout(io.StringIO()):
            parse(words)
    except UsageError as error:
        return str(error)
    except SystemExit:  # --help
        pass
    return ""


def _make(words: list[str], page: str) -> str:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        known = rf"^{name} *\??=" if equals else rf"^(?:[\w-]+ )*{name}(?: [\w-]+)*:"
        if not re.search(known, makefile, re.MULTILINE):
            return f"make has no {'variable' if equals else 'target'} {name}"
    return ""


def _python(words: list[str], page: str) -> str:
    if words[0] != "-m":
        exists = (ROOT / words[0]).exists() or words[0] in files_of(page)
        return "" if exists else f"there is no {words[0]}"
    if importlib.util.find_spec(words[1]) is None:
        return f"there is no module {words[1]}"
    missing = [word for word in words[2:] if "/" in word and not (ROOT / word).exists()]
    return f"there is no {missing[0]}" if missing else ""


def _pip(words: list[str], page: str) -> str:
    """Each package is one that the project itself installs, or an older Horovod."""
    if words[0] != "install":
        return f"pip {words[0]} is not known here"
    listed = "".join(path.read_text() for path in (ROOT / "requirements").glob("*.txt"))
    known = {"horovod", *re.findall(r"^[\w-]+", listed, re.MULTILINE)}
    project = (ROOT / "pyproject.toml").read_text()
    for word in words[1:]:
        extra = re.fullmatch(r"\.(?:\[([\w-]+)\])?", word)
        if extra and extra[1] and not re.search(rf"^{extra[1]} = \[", project, re.MULTILINE):
            return f"pyproject.toml has no extra {extra[1]}"
        is_name = not extra and not word.startswith("-") and "/" not in word
        if is_name and word.partition("==")[0] not in known:
            return f"requirements have no {word}"
    return ""


_CHECKS = {
    "horovodrun": _horovodrun,
    "make": _make,
    "pip": _pip,
    "python": _python,
}


def faults_of_arguments(commands: list[str]) -> str:
    """What scripts of the repository say against their arguments, read by themselves."""
    lists = [words_of(command)[1:] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", _READ_ARGUMENTS, json.dumps(lists)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    read = done.stdout.splitlines()
    missing = [" ".join(words) for words in lists if " ".join(words) not in read]
    return f"{missing}: {done.stderr}" if missing else ""
