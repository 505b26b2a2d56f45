"""Spares the processes that tests start what frameworks import but tests never use.

Python imports this module at its start if its folder is on the path (`tests/conftest.py`). These
imports go:

- torch._dynamo, which the first optimizer imports to exempt itself from compilation (3.4 s).
  Without it, nothing is compiled, so there is nothing to be exempt from; a program that compiles
  has imported it.
- what `import tensorflow` loads for its lite models, and the copies of its interface that each of
  its compatible interfaces holds once more (1 to 2 s).
- scikit-learn, which Keras imports if it is installed, for wrappers of its own (1.6 s).

Libraries and the commands of documents run without this module, as users run them.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

# They are imported, and nothing is asked of them.
_EMPTY = {
    "tensorflow._api.v2.compat.v1.compat",
    "tensorflow._api.v2.compat.v1.lite",
    "tensorflow._api.v2.compat.v2",
    "tensorflow._api.v2.lite",
}
_KERAS_WRAPPERS = "keras.src.wrappers.sklearn_wrapper"


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of PyTorch and replaces a decorator in it before anything is decorated."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self.name == "torch._compile":
            module._disable_dynamo = _exempting(module._disable_dynamo)  # type: ignore[attr-defined]
        else:
            module._use_grad_for_differentiable = _choosing(  # type: ignore[attr-defined]
                module._use_grad_for_differentiable
            )


def _exempting(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """As `torch._compile._disable_dynamo`, but for programs that never compile."""

    def exempting(fn: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        if fn is None:
            return functools.partial(exempting, *args, **kwargs)
        return _either(decorator(fn, *args, **kwargs), fn)

    return exempting


def _choosing(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """As `torch.optim.optimizer._use_grad_for_differentiable`, but without breaks of graphs."""

    def choosing(step: Callable[..., Any]) -> Callable[..., Any]:
        def with_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            torch = sys.modules["torch"]
            with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
                return step(optimizer, *args, **kwargs)

        return _either(decorator(step), with_grad)

    return choosing


def _either(compiling: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The first function if the program has imported the compiler, otherwise the second."""

    @functools.wraps(compiling)
    def either(*args: Any, **kwargs: Any) -> Any:
        called = compiling if "torch._dynamo" in sys.modules else plain
        return called(*args, **kwargs)

    return either


class _Nothing:
    """Loads a module that stays empty. importlib.abc, which has its class, takes 20 ms to import."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        pass  # one of the usual kind

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Finder:
    """Comes before all other finders of modules."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in ("torch._compile", "torch.optim.optimizer"):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.origin is not None:
                spec.loader = _Loader(name, spec.origin)
            return spec
        if name in _EMPTY:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Nothing()  # modules in a package can still be imported
            return spec
        if name == "sklearn" and _is_being_imported(_KERAS_WRAPPERS):
            raise ModuleNotFoundError("Keras does without scikit-learn in tests", name=name)
        return None


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
