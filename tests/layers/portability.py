"""Finds calls that not every system has, and writes the list of docs/portability.md.

Usage: ``python tests/layers/portability.py docs/portability.md``. Comments and docstrings do not
count. A pattern that is missing here hides a call, so add it when you use something new.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("native", "src/horovod")
ENDINGS = (".cc", ".h", ".py")
SKIPPED = ("native/tests/", "native/testing/", "native/fuzz/")

LINUX = {
    "memfd": r"memfd_create|F_ADD_SEALS|\bfallocate\(|MADV_REMOVE|\bmremap\(",
    "eventfd": r"\beventfd(?:_read|_write)?\b(?=\(|\.h)",
    "epoll": r"\bepoll_(?:create1|ctl|wait)\b|\bEPOLL[A-Z]+\b|select\.epoll",
    "timerfd": r"\btimerfd_\w+",
    "futex": r"\bSYS_futex\b|\bFUTEX_[A-Z]+",
    "prctl": r"\bprctl\b",
    "/proc, /sys": r"/proc/[a-z]|/sys/[a-z]|/dev/shm",
    "pidfd": r"\bpidfd_(?:open|send_signal)\b",
    "affinity": r"sched_getaffinity|sched_setaffinity|pthread_setaffinity_np",
    "thread number, name": r"\bgettid\b|\bpthread_setname_np\b|\bsyscall\(",
    "SO_PEERCRED": r"\bSO_PEERCRED\b",
    "abstract socket": r"\bsun_path\b|f\"\\0\{",
    "TCP options": r"\bTCP_(?:USER_TIMEOUT|KEEPIDLE)\b|\bSO_PROTOCOL\b|\bSIOCOUTQ\b",
    "pipe size": r"\bF_SETPIPE_SZ\b",
    "sigtimedwait": r"\bsigtimedwait\b",
}
"""Name and pattern of what other systems lack, macOS included."""

POSIX = {
    "fork, session": r"\bos\.fork\b|\bsetsid\b|start_new_session|preexec_fn|\bkillpg\b|\bgetpgid\b",
    "unix socket, descriptors": r"\bAF_UNIX\b|\bSCM_RIGHTS\b|\bsend_fds\b|\brecv_fds\b",
    "mmap": r"\bmmap\(",
    "sockets.h": r"sys/socket\.h|netinet/|arpa/inet\.h|sys/uio\.h|\bpoll\.h",
    "dlopen": r"\bdlopen\(",
    "owner, links": r"\bgeteuid\b|O_NOFOLLOW|\bfchmod\b",
    "flock": r"\bflock\b",
    "limits": r"\bresource\.\w",
    "signals": r"\bset_wakeup_fd\b|\bsigaction\b|\bSIG(?:STOP|CONT|HUP|KILL|USR1|PIPE)\b",
    "poll": r"\bselect\.poll\b|(?<!\w)::poll\(",
}
"""Name and pattern of what Windows lacks, but macOS has."""

_ANY = re.compile("|".join((*LINUX.values(), *POSIX.values())))


@functools.cache
def uses() -> dict[str, tuple[list[str], list[str]]]:
    """Return what each file uses of :data:`LINUX` and of :data:`POSIX`, without the other files."""
    found = {}
    for path in sorted(_files()):
        text = path.read_text(encoding="utf-8")
        if not _ANY.search(text):
            continue
        text = code_of(text, path.suffix)
        linux, posix = (
            [name for name, pattern in kinds.items() if re.search(pattern, text)]
            for kinds in (LINUX, POSIX)
        )
        if linux or posix:
            found[path.relative_to(ROOT).as_posix()] = linux, posix
    return found


def code_of(text: str, suffix: str) -> str:
    """Return a source without its comments, and Python without docstrings."""
    if suffix != ".py":
        return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(re.sub(r"(?:^|\s)#[^\"']*$", "", line) for line in lines)


def tables() -> dict[str, list[str]]:
    """Return the lines of the tables of docs/portability.md, by name."""
    found = uses()
    per_call = ["| Call | Files | Missing on |", "|---|---|---|"]
    for index, (kinds, missing) in enumerate(((LINUX, "macOS, Windows"), (POSIX, "Windows"))):
        for name in kinds:
            count = sum(name in both[index] for both in found.values())
            per_call.append(f"| {name} | {count} | {missing} |")
    per_file = ["| File | Linux only | POSIX only |", "|---|---|---|"]
    for path, (linux, posix) in found.items():
        cells = " | ".join("; ".join(names) or "–" for names in (linux, posix))
        per_file.append(f"| `{path}` | {cells} |")
    return {"calls": per_call, "files": per_file}


def _files() -> list[Path]:
    paths = [path for root in SOURCES for path in (ROOT / root).rglob("*")]
    paths = [path for path in paths if path.suffix in ENDINGS]
    return [path for path in paths if not path.relative_to(ROOT).as_posix().startswith(SKIPPED)]


if __name__ == "__main__":
    from horovod._settings.document import run

    sys.exit(run(sys.argv[1:], "tests/layers/portability.py", tables()))
