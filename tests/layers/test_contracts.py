"""The contracts of import-linter that list modules list all that exist; ``make lint`` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; import-linter brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "horovod"

# By contract: what may import the modules that are forbidden to all others.
EXEMPT = {
    "tensorflow": {"tensorflow", "keras", "_keras", "spark"},
    "torch": {"torch", "spark"},
    "jax": {"jax"},
    "mxnet": {"mxnet"},
    "files-and-tables": {"runner", "__main__"},
}
# Contracts of layers about a few modules of a package.
PARTIAL = {"keras"}


def contracts() -> dict[str, dict[str, Any]]:
    """The contracts in pyproject.toml, by id."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {each["id"]: each for each in settings["tool"]["importlinter"]["contracts"]}


def modules() -> set[str]:
    """All modules and packages directly below ``horovod``, except the compiled one."""
    found = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    return found | {path.parent.name for path in SOURCE.glob("*/__init__.py")}


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_a_list_of_modules_has_no_holes(name: str) -> None:
    listed = {module.removeprefix("horovod.") for module in contracts()[name]["source_modules"]}
    # One that was merged or renamed is exempt no more.
    assert listed == modules() - EXEMPT[name]


def test_every_contract_covers_all_modules() -> None:
    for name, contract in contracts().items():
        if contract["type"] == "layers":
            assert contract.get("exhaustive") or name in PARTIAL, name
        else:
            assert name in EXEMPT


def test_every_folder_of_the_launcher_has_its_place() -> None:
    layers = contracts()["launcher"]["layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    launcher = SOURCE / "runner"
    found = {path.stem for path in launcher.glob("*.py")} - {"__init__"}
    assert placed == found | {path.parent.name for path in launcher.glob("*/__init__.py")}
