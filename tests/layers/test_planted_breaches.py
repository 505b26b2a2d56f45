"""The layers of pyproject.toml hold: imports planted in a copy of the sources are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BREACHES = {
    "tensorflow/xla.py": "horovod.torch.optimizer",
    "torch/sparse.py": "horovod.mxnet.ops",
    "_train/structure.py": "horovod.runner.output.console",
    "_rank/cores.py": "horovod._rank.context",
    "jax/calls.py": "horovod.keras",
}


def test_planted_breaches_are_refused(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    for file, module in BREACHES.items():
        path = tmp_path / "src" / "horovod" / file
        path.write_text(f"{path.read_text()}\nimport {module} as _planted\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    command = ["lint-imports", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    linted = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert linted.returncode == 1, linted.stderr
    report = " ".join(linted.stdout.split())
    for file, module in BREACHES.items():
        importer = f"horovod.{file.removesuffix('.py').replace('/', '.')}"
        assert f"{importer} -> {module} (l." in report, f"{importer} -> {module}: not refused"
