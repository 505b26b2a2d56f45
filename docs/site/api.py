"""Pages of the public names, from the source alone: no framework is imported.

The table "Public names" of docs/house.md lists the modules. Each page has the modules of a
framework; on it each object is described once, and its other names refer to that place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[2]
# By page: its title, and the packages whose modules it has; the first that fits counts.
PAGES = {
    "torch": ("PyTorch", ("horovod.torch",)),
    "tensorflow_keras": ("tf.keras", ("horovod.tensorflow.keras",)),
    "tensorflow_data": ("Data of TensorFlow", ("horovod.tensorflow.data",)),
    "tensorflow": ("TensorFlow", ("horovod.tensorflow",)),
    "keras": ("Keras", ("horovod.keras",)),
    "jax": ("JAX", ("horovod.jax",)),
    "mxnet": ("MXNet", ("horovod.mxnet",)),
    "data": ("Loading data", ("horovod.data",)),
    "ray": ("Ray", ("horovod.ray",)),
    "spark": ("Spark", ("horovod.spark",)),
    "testing": ("Testing", ("horovod.testing",)),
    "common": ("For libraries", ("horovod.common",)),
    "launcher": ("Starting jobs", ("horovod",)),
}
FIRST = ("launcher", "torch", "tensorflow", "keras", "tensorflow_keras", "jax", "mxnet")


def public_modules() -> list[str]:
    """Return the modules of the table "Public names", in its order."""
    text = (ROOT / "docs/house.md").read_text().partition("## Public names")[2]
    found: list[str] = []
    for cell in re.findall(r"^\| (`horovod.*?) \|", text, re.MULTILINE):
        names = re.findall(r"`([\w.]+)`", cell)
        found += [n if n.split(".")[0] == "horovod" else f"{names[0]}.{n}" for n in names]
    return found


def pages() -> dict[str, str]:
    """Return the Markdown of each page, by its name."""
    package = griffe.load("horovod", search_paths=[str(ROOT / "src")], allow_inspection=False)
    package_names = public_names(package)
    by_page: dict[str, list[str]] = {name: [] for name in PAGES}
    for module in public_modules():
        by_page[_page_of(module)].append(module)
    order = [*FIRST, *(name for name in PAGES if name not in FIRST)]
    return {
        f"api/{name}.md": _Page(package, package_names).text(PAGES[name][0], by_page[name])
        for name in order
    }


def _page_of(module: str) -> str:
    return next(
        page
        for page, (_, packages) in PAGES.items()
        if any(module == name or module.startswith(f"{name}.") for name in packages)
    )


def public_names(package: griffe.Object) -> dict[str, list[str]]:
    """Return the names of each public module, from its source."""
    return {module: _exports(_find(package, module)) for module in public_modules()}


def _find(package: griffe.Object, path: str) -> griffe.Object | griffe.Alias:
    return package if path == "horovod" else package[path.removeprefix("horovod.")]


def _exports(module: griffe.Object | griffe.Alias) -> list[str]:
    """Return the names of a module's ``__all__``, resolved through those of other modules."""
    names: list[str] = []
    for each in module.exports or []:
        if isinstance(each, str):
            names.append(each)
        else:  # an __all__ that this one extends
            names += _exports(module.modules_collection[each.canonical_path.rpartition(".")[0]])
    return sorted({*names})


@dataclass
class _Page:
    """One page as it grows.

    Attributes:
        package: all of Horovod.
        names: the public names of each module.
        described: by canonical path, the public path under which the page describes an object.
    """

    package: griffe.Object
    names: dict[str, list[str]]
    described: dict[str, str] = field(default_factory=dict)

    def text(self, title: str, modules: list[str]) -> str:
        """Return the page of some modules."""
        return "\n".join([f"# {title}", *(self._module(module) for module in modules)])

    def _module(self, module: str) -> str:
        members, borrowed, others = [], [], []
        for name in self.names[module]:
            path = f"{module}.{name}"
            target = self._target(path)
            if target in self.names:  # a public module
                others.append(f"- `{name}`: [`{target}`](#{target})")
            elif target is None:
                others.append(f'- <a id="{path}"></a>`{name}`: as in [`horovod.keras`](keras.md)')
            elif target in self.described:
                known = self.described[target]
                others.append(f'- <a id="{path}"></a>`{name}`: [`{known}`](#{known})')
            else:
                self.described[target] = path
                own = target == self._plain(path) and not _find(self.package, path).is_module
                (members if own else borrowed).append((name, target))
        parts = [f"## {module} {{ #{module} }}"]
        if members:  # which come with the text of the module
            listed = ", ".join(name for name, _ in members)
            parts.append(f"::: {module}\n    options:\n      members: [{listed}]")
        else:
            parts.append(self._docstring(module))
        for name, target in borrowed:
            options = "show_root_heading: true\n      show_root_toc_entry: true"
            parts.append(f'<a id="{module}.{name}"></a>')
            parts.append(f"::: {target}\n    options:\n      {options}")
        if others:
            parts.append("\n".join(others))
        return "\n\n".join(parts) + "\n"

    def _docstring(self, module: str) -> str:
        docstring = _find(self.package, module).docstring
        return "" if docstring is None else docstring.value.partition("\n\n")[0]

    def _plain(self, path: str) -> str | None:
        """Return the path of the object that a name refers to, or None if it has no source."""
        try:
            found = _find(self.package, path)
            found = found.final_target if found.is_alias else found
            name = path.rpartition(".")[2]
            if found.is_module and found.path not in self.names and name in found.members:
                found = found[name]  # which the package has under the name of its module
                found = found.final_target if found.is_alias else found
            return found.path
        except (KeyError, griffe.AliasResolutionError):
            return None

    def _target(self, path: str) -> str | None:
        """Return the path of the object to describe: what a wrapper wraps, if that has the text."""
        plain = self._plain(path)
        if plain is None:
            return None
        found = _find(self.package, plain)
        value = getattr(found, "value", None)
        if found.docstring or not isinstance(value, griffe.ExprCall) or len(value.arguments) != 1:
            return plain
        wrapped = value.arguments[0]
        if isinstance(wrapped, str):
            return plain
        return self._plain(wrapped.canonical_path) or plain
