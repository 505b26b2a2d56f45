"""Spares the processes that tests start what frameworks import but tests never use.

Python imports this module at its start if its folder is on the path (`tests/conftest.py`). These
imports go, or wait until somebody asks for what is in them:

- torch._dynamo, which the first optimizer imports to exempt itself from compilation (3.4 s).
  Without it, nothing is compiled, so there is nothing to be exempt from; a program that compiles
  has imported it.
- what `import torch` loads for compilers, quantization, distributions and the like (0.5 s).
- what `import tensorflow` loads for its lite models and its debugger, and the copies of its
  interface that each of its compatible interfaces holds once more (1 to 2 s).
- scikit-learn, which Keras imports if it is installed, for wrappers of its own (1.6 s), and of
  which examples want the images of digits and nothing else (1.1 s).

Libraries and the commands of README run without this module, as users run them.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

# They are imported, and nothing is asked of them.
_EMPTY = {
    "tensorflow._api.v2.compat.v1.compat",
    "tensorflow._api.v2.compat.v1.debugging.experimental",
    "tensorflow._api.v2.compat.v1.lite",
    "tensorflow._api.v2.compat.v2",
    "tensorflow._api.v2.debugging.experimental",
    "tensorflow._api.v2.lite",
}
# They are imported, and only some programs ask something of them.
_LATER = {
    "sklearn",
    "sklearn.datasets",
    "torch.ao",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.profiler",
    "torch.quantization",
    "torch.testing",
}
# How operations without data are computed, in Python: the compiler of PyTorch needs it.
_FOR_COMPILER = ("torch._meta_registrations", "torch.distributed._meta_registrations")
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
    """Loads a module that stays empty. importlib.abc, which has its class, takes long to import."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        pass  # one of the usual kind

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Later(_Nothing):
    """Loads a module when something is asked of it; what is in a package may be loaded before."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._lock = threading.RLock()  # ranks may be threads
        self._is_loading = False

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = functools.partial(self._load_and_get, module)  # type: ignore[method-assign]
        if module.__name__ == "sklearn.datasets":
            module.load_digits = _load_digits  # type: ignore[attr-defined]
        elif module.__name__ == _FOR_COMPILER[0]:
            _complete_generators()

    def load(self, module: ModuleType) -> None:
        """Loads it now, if that has not been done."""
        with self._lock:
            loader, self._loader = self._loader, None
            if loader is None:
                return
            ours = module.__getattr__
            self._is_loading = True
            loader.exec_module(module)
            self._is_loading = False
            if module.__getattr__ is ours:
                del module.__getattr__

    def _load_and_get(self, module: ModuleType, name: str) -> Any:
        with self._lock:
            if self._is_loading:  # by this thread
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} yet")
            self.load(module)
        return getattr(module, name)


def _complete_generators() -> None:
    """What torch._prims.rng_prims does besides: PyTorch 2.13 makes no generators without it."""
    bind = getattr(sys.modules["torch"]._C, "_set_generator_metaclass", None)
    if bind is not None:
        from torch._opaque_base import OpaqueBaseMeta

        bind(OpaqueBaseMeta)


def _load_digits(*, return_X_y: bool = False) -> Any:
    """As `sklearn.datasets.load_digits`, from the same file, without all of scikit-learn."""
    from types import SimpleNamespace

    import numpy as np

    folder = sys.modules["sklearn.datasets"].__path__[0]
    rows = np.loadtxt(f"{folder}/data/digits.csv.gz", delimiter=",")
    data = rows[:, :-1]
    target = rows[:, -1].astype(int)
    if return_X_y:
        return data, target
    return SimpleNamespace(data=data, images=data.reshape(-1, 8, 8), target=target)


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
        if name == "sklearn" and _is_being_imported(_KERAS_WRAPPERS):
            raise ModuleNotFoundError("Keras does without scikit-learn in tests", name=name)
        if name == "torch._dynamo":
            _load_now(*_FOR_COMPILER)
        if name.startswith("sklearn.") and name != "sklearn.datasets":
            _load_now("sklearn")  # whose modules import each other in the order that it begins
        if name in _EMPTY:
            return _found(name, path, lambda _: _Nothing())
        if name in _LATER or name in _FOR_COMPILER:
            return _found(name, path, _Later)
        return None


def _load_now(*names: str) -> None:
    for name in names:
        loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
        if isinstance(loader, _Later):
            loader.load(sys.modules[name])


def _found(
    name: str, path: Sequence[str] | None, loader_of: Callable[[Any], Any]
) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, with another loader; modules in a package can still be imported."""
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None:
        spec.loader = loader_of(spec.loader)
    return spec


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


sys.meta_path.insert(0, _Finder)

if _folder := os.environ.get("AUDIT_TRAIL"):
    import audit_trail

    audit_trail.install(_folder)
