"""Installs packages, with uv if it can do what pip is told: install.py PYTHON ARGUMENT...

PYTHON is the interpreter of the environment, ARGUMENT what `pip install` takes, of which both know
the same. uv needs a quarter of the processor time, and several environments share the files of what
they all hold. It does not read the configuration of pip (indexes, folders of wheels, constraints),
which is therefore passed on; settings that it does not know, and machines without it, are for pip.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys

PIP = ("-m", "pip", "--disable-pip-version-check")
# A setting of pip, the variable of uv, and what separates several values there.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
# They change nothing of what is installed.
LEFT_OUT = {
    "cache-dir",
    "config-file",
    "default-timeout",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-compile",
    "no-input",
    "progress-bar",
    "quiet",
    "retries",
    "root-user-action",
    "timeout",
}


def settings_of_pip() -> dict[str, str]:
    """What pip does without arguments."""
    shown = subprocess.run(
        [sys.executable, *PIP, "config", "list"], capture_output=True, text=True, check=True
    )
    by_place: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in shown.stdout.splitlines():
        name, _, value = line.partition("=")
        place, _, key = name.rpartition(".")
        if place in by_place:
            by_place[place][key] = str(ast.literal_eval(value))
    return by_place["global"] | by_place["install"] | by_place[":env:"]


def variables_of_uv(settings: dict[str, str]) -> dict[str, str] | None:
    """The same for uv, None if it cannot do the same."""
    if not settings.keys() <= VARIABLES.keys() | LEFT_OUT:
        return None
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # pip prefers no index, either
    for key in settings.keys() & VARIABLES.keys():
        name, separator = VARIABLES[key]
        variables[name] = separator.join(settings[key].split())
    return variables


def main(python: str, *arguments: str) -> int:
    variables = variables_of_uv(settings_of_pip()) if importlib.util.find_spec("uv") else None
    if variables is None:
        command = [python, *PIP, "install", "-qq", "--no-compile"]
    else:
        command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python]
    environment = (variables or {}) | os.environ
    return subprocess.run([*command, *arguments], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
