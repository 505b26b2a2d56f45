"""onnxruntime-web gets into the folder of the page whole and by its hash, or not at all."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "fetch_runtime.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("fetch_runtime", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archive_of(names: tuple[str, ...]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as package:
        for name in names:
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(name)
            package.addfile(member, io.BytesIO(name.encode()))
    return file.getvalue()


def test_other_archives_are_refused(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.tgz"
    path.write_bytes(archive_of(script.FILES))
    with pytest.raises(SystemExit, match=r"has the SHA-512 .*: it is not used"):
        script.read_archive(str(path))


def test_all_files_and_their_license_are_unpacked(script: Any, tmp_path: Path) -> None:
    assert not script.is_complete(tmp_path)
    script.unpack(archive_of((*script.FILES, "ort.all.js")), tmp_path)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {*script.FILES, "LICENSE.txt", "version.txt"}
    assert (tmp_path / script.FILES[0]).read_text() == script.FILES[0]
    assert script.is_complete(tmp_path)
    (tmp_path / script.FILES[1]).unlink()
    assert not script.is_complete(tmp_path)


def test_files_of_another_version_are_not_complete(script: Any, tmp_path: Path) -> None:
    script.unpack(archive_of(script.FILES), tmp_path)
    (tmp_path / "version.txt").write_text("1.0.0")
    assert not script.is_complete(tmp_path)
