"""Fetch onnxruntime-web, which runs exported models in browsers, into the folder of the page.

Usage: ``python fetch_runtime.py [ARCHIVE]``. The files have 15 MB and are therefore not in the
repository. They come from npm, without npm from its registry, or from ARCHIVE, a copy of the
package on this machine; each must have the hash below. Nothing is fetched if they exist. The app
itself fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

VERSION = "1.30.0"
URL = f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
FOLDER = Path(__file__).parent / "src" / "landscapes" / "page" / "runtime"
TIMEOUT_S = 60.0  # without a byte
LARGEST = 100 << 20
# The package itself has no copy of it.
LICENSE = """onnxruntime-web, https://github.com/microsoft/onnxruntime

MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def read_archive(path: str | None) -> bytes:
    """Return the bytes of the package. Raise SystemExit if its hash is not the one above."""
    archive = Path(path).read_bytes() if path is not None else pack_by_npm() or download()
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != SHA512:
        raise SystemExit(f"{path or URL} has the SHA-512 {found}, not {SHA512}: it is not used.")
    return archive


def pack_by_npm() -> bytes | None:
    """Return the package from the registry that npm is set up for; None if that fails."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", f"onnxruntime-web@{VERSION}"]
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, cwd=folder, check=True, timeout=5 * TIMEOUT_S)
            return next(Path(folder).glob("*.tgz")).read_bytes()
    return None


def download() -> bytes:
    """Return the package from the public registry. Raise SystemExit if it cannot be fetched."""
    try:
        with urllib.request.urlopen(URL, timeout=TIMEOUT_S) as answer:
            archive: bytes = answer.read(LARGEST)
    except OSError as error:
        raise SystemExit(
            f"{URL} cannot be fetched: {error}. Fetch it elsewhere and name the file: "
            f"python {Path(__file__).name} ARCHIVE"
        ) from error
    return archive


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files that the page loads, then the version, which marks them as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for name in FILES:
            member = package.extractfile(f"package/dist/{name}")
            if member is None:
                raise SystemExit(f"onnxruntime-web {VERSION} has no dist/{name}.")
            replace(folder / name, member.read())
    replace(folder / "LICENSE.txt", LICENSE.encode())
    replace(folder / "version.txt", VERSION.encode())


def replace(path: Path, content: bytes) -> None:
    """Write a file in one step, so that a second run beside this one never sees half of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def is_complete(folder: Path) -> bool:
    version = folder / "version.txt"
    return (
        version.is_file()
        and version.read_text() == VERSION
        and all((folder / name).is_file() for name in (*FILES, "LICENSE.txt"))
    )


if __name__ == "__main__":
    if not is_complete(FOLDER):
        unpack(read_archive(sys.argv[1] if len(sys.argv) > 1 else None), FOLDER)
        print(f"onnxruntime-web {VERSION} is in {FOLDER}")
