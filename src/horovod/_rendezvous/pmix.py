"""One text from rank 0 to all ranks, over PMIx (Open MPI, ``srun --mpi=pmix``, jsrun).

PMIx has no protocol that others may speak, only a library. It is used in a process of its own:
Open MPI 5 cannot be initialized in a process that has used PMIx before. That process runs this file
as a program, without anything else of Horovod.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

_KEY = b"horovod.bootstrap"
_LIBRARY = "libpmix.so.2"

# Of the PMIx standard, which promises not to change them.
_MAX_NAMESPACE = 255
_STRING = 3
_GLOBAL = 3


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * (_MAX_NAMESPACE + 1)), ("rank", ctypes.c_uint32))


class _Value(ctypes.Structure):
    # The library's union is larger than a pointer.
    _fields_ = (("type", ctypes.c_uint16), ("text", ctypes.c_char_p), ("rest", ctypes.c_char * 64))


def candidates(folders: tuple[str, ...]) -> list[str]:
    """Paths at which the library may lie; a bare name stands for where the system looks."""
    found = []
    for folder in folders:
        for below in ("", "lib", "lib64", "openmpi", "lib/openmpi", "lib/pmix"):
            path = os.path.join(folder, below, _LIBRARY)
            if folder and os.path.exists(path):
                found.append(path)
    return [*dict.fromkeys(found), _LIBRARY]


def share(text: str | None, folders: tuple[str, ...], timeout_s: float) -> str | None:
    """Publishes a text, or waits for it. All ranks must call this.

    Args:
        text: of rank 0; None on the others.
        folders: of the launcher, for the library.
        timeout_s: for the whole exchange.

    Returns:
        The text of rank 0; None if this machine has no library of PMIx.

    Raises:
        OSError: PMIx failed, or the other ranks did not come in time.
    """
    words = [sys.executable, "-I", os.path.abspath(__file__), *candidates(folders)]
    try:
        done = subprocess.run(
            words, input=json.dumps(text), capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError("PMIx did not bring the ranks together in time") from None
    if done.returncode == _NO_LIBRARY:
        return None
    if done.returncode != 0:
        raise OSError(f"PMIx failed: {done.stderr.strip()[-300:]}")
    return str(json.loads(done.stdout.splitlines()[-1]))


_NO_LIBRARY = 3


def _load(paths: list[str]) -> ctypes.CDLL | None:
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _exchange(library: ctypes.CDLL, text: str | None) -> str:
    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} returned {status}")

    none, zero = None, ctypes.c_size_t(0)
    me = _Process()
    call("PMIx_Init", ctypes.byref(me), none, zero)
    if text is not None:
        value = _Value(_STRING, text.encode())
        call("PMIx_Put", ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(value))
        call("PMIx_Commit")
    call("PMIx_Fence", none, zero, none, zero)
    root = _Process(me.namespace, 0)
    found = ctypes.POINTER(_Value)()
    call("PMIx_Get", ctypes.byref(root), _KEY, none, zero, ctypes.byref(found))
    if found.contents.type != _STRING:
        raise OSError("PMIx_Get returned something else than a text")
    result = found.contents.text.decode()
    call("PMIx_Finalize", none, zero)
    return str(result)


def main(paths: list[str]) -> int:
    """Reads the text as JSON from stdin and writes that of rank 0 to stdout."""
    library = _load(paths)
    if library is None:
        return _NO_LIBRARY
    print(json.dumps(_exchange(library, json.load(sys.stdin))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
