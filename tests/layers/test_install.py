"""`requirements/install.py` does what pip is told to do, or leaves it to pip."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "requirements" / "install.py"


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_of_pip_reach_uv(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nfind-links = /a\n  /b\nconstraint = /from/file\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))  # and no other file
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "CERT"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONSTRAINT", "/from/environment")
    monkeypatch.setenv("PIP_INDEX_URL", "https://here/simple")
    monkeypatch.setenv("PIP_TIMEOUT", "5")
    variables = install.variables_of_uv(install.settings_of_pip())
    assert variables["UV_FIND_LINKS"].startswith("/a,/b")
    assert variables["UV_CONSTRAINT"] == "/from/environment"
    assert variables["UV_DEFAULT_INDEX"] == "https://here/simple"


def test_what_uv_cannot_do_is_left_to_pip(install: Any) -> None:
    assert install.variables_of_uv({"timeout": "5"}) is not None
    assert install.variables_of_uv({"trusted-host": "here"}) is None
    assert install.variables_of_uv({"no-index": "1"}) is None
