"""The contracts of import-linter cover all modules; ``make lint`` runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from foreign_imports import HOMES, breaches

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; import-linter brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "horovod"

# Contracts of layers about a few modules of a package.
PARTIAL = {"keras"}


def contracts() -> dict[str, dict[str, Any]]:
    """Return the contracts in pyproject.toml, by id."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def modules() -> set[str]:
    """Return all modules and packages directly below ``horovod``."""
    found = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    return found | {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_every_contract_covers_all_modules() -> None:
    for name, contract in contracts().items():
        assert contract["type"] == "layers"
        assert contract.get("exhaustive") or name in PARTIAL, name


def test_architecture_lists_the_layers_in_order() -> None:
    layers = contracts()["layers"]["layers"]
    position = {
        name.strip("() "): index for index, layer in enumerate(layers) for name in layer.split("|")
    }
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.split("| Module | Contents |\n", 1)[1].split("\n\n", 1)[0]
    listed = re.findall(r"^\| `src/horovod/(\w+)", table, re.MULTILINE)
    assert set(listed) >= {"ray", "runner", "keras", "torch", "_train", "_rank", "errors"}
    assert listed == sorted(listed, key=lambda name: position[name])


def test_libraries_are_imported_at_home_only(tmp_path: Path) -> None:
    assert not breaches()
    assert set().union(*HOMES.values()) <= modules(), "a home that is gone"
    planted = tmp_path / "horovod" / "_train" / "names.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def f():\n    from torch.optim import SGD\n    import yaml\n")
    found = breaches(tmp_path / "horovod")
    assert [line.split(" is ")[0] for line in found] == [
        "horovod/_train/names.py:2: torch",
        "horovod/_train/names.py:3: yaml",
    ]


def test_every_folder_of_the_launcher_has_its_place() -> None:
    layers = contracts()["launcher"]["layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    launcher = SOURCE / "runner"
    found = {path.stem for path in launcher.glob("*.py")} - {"__init__"}
    assert placed == found | {path.parent.name for path in launcher.glob("*/__init__.py")}
