"""Records what Horovod's code in this process listens on, opens and unpickles.

Python raises audit events for all three (https://docs.python.org/3/library/audit_events.html). A
test sets AUDIT_TRAIL to a folder, and each process that it starts adds a file of JSON lines there.
An event counts if Horovod's own code causes it, through the standard library or not: what scripts
and frameworks do is theirs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_STANDARD = os.path.dirname(os.__file__)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT
# They act for whoever calls them.
_PASSED_ON = (
    "_base/files.py",
    "_rendezvous/secret.py",
    "_rendezvous/sockets.py",
    "runner/experiment/trusted.py",
)
_PACKAGE = f"{os.sep}horovod{os.sep}"
# What only the interpreter and the system decide; and what this module writes.
_IGNORED = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", sys.prefix, sys.base_prefix)


def _cause() -> str:
    """Return the file of Horovod whose code causes an event; "" if there is none."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "_get_default_tempdir":  # looks where it can write
            return ""
        is_library = name.startswith((_STANDARD, "<frozen")) and "site-packages" not in name
        if not is_library and "cloudpickle" not in name:
            _, found, inside = name.rpartition(_PACKAGE)
            if inside not in _PASSED_ON:
                return f"horovod/{inside}" if found and "/tests/" not in name else ""
        frame = frame.f_back
    return ""


def _is_module(path: str) -> bool:
    return "/site-packages/" in path or path.endswith((".py", ".pyc"))


def install(folder: str) -> None:
    """Begin to record into a file of this process."""
    out = os.open(
        f"{folder}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    )
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ignored = (*_IGNORED, f"{source}{os.sep}src{os.sep}")

    def add(event: str, what: object) -> None:
        if cause := _cause():
            os.write(out, json.dumps([event, cause, what], default=repr).encode() + b"\n")

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind":
            add("bind", arguments[1])
        elif event == "pickle.find_class":
            add("unpickle", ".".join(arguments))
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            path = os.path.abspath(os.fsdecode(path))
            if not (path.startswith(ignored) or _is_module(path) or os.path.isdir(path)):
                add("write" if flags & _WRITES else "read", path)

    sys.addaudithook(hear)
