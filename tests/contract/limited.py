"""Commands of other environments that must end, and show what they printed if they do not."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GRACE_S = 20.0


def run_limited(
    words: Sequence[object], environment: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; one that hangs is told to end, as a launcher tells its ranks."""
    process = subprocess.Popen(
        [str(word) for word in words],
        env={**environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            printed = _end(process)
            raise AssertionError(f"no end within {limit_s:g} s of {words}\n{printed}") from None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> str:
    """Ends a command; returns what it printed, unless somebody else still holds its console."""
    process.terminate()
    try:
        out, err = process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired as late:
        process.kill()
        out, err = (
            text.decode(errors="replace") if isinstance(text, bytes) else text or ""
            for text in (late.stdout, late.stderr)
        )
    return out + err
