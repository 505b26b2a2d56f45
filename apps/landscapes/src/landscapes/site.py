"""The page as static files, which run the models in the browser: for any server of files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from landscapes.errors import LandscapesError, naming_failure

if TYPE_CHECKING:
    from landscapes.studio import Studio

PAGE = Path(__file__).parent / "page"
RUNTIME = PAGE / "runtime" / "version.txt"  # written last
MARK = "api/meta"  # in every folder that this module has written


def write_site(studio: Studio, folder: Path, opset: int | None = None) -> dict[str, float]:
    """Write the page, its runtime and the models to ``folder``.

    Return by model how far onnxruntime is from PyTorch. Raise LandscapesError if the folder has
    files of something else, or if onnxruntime-web has not been fetched when the app was installed.
    """
    if not RUNTIME.is_file():
        raise LandscapesError(
            f"{RUNTIME.parent} has no onnxruntime-web: run `make landscapes-runtime` in the "
            "repository, or fetch_runtime.py of the app."
        )
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise LandscapesError(f"{folder} has files of something else: name a new folder.")
    with naming_failure(folder):
        shutil.copytree(PAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
        (folder / "api").mkdir(exist_ok=True)
    apart = studio.network.export(folder / "models", opset)
    meta = {
        "engine": "browser",
        "models": {name: f"models/{name}.onnx" for name in apart},
        **studio.describe(),
    }
    with naming_failure(folder):
        Image.fromarray(studio.sheet).save(folder / "api" / "sheet.png")
        (folder / MARK).write_text(json.dumps(meta), "utf-8")
    return apart
