"""``dataclass(frozen=True)`` without generated code, for classes that each program must load.

The standard decorator compiles six methods for each class, which takes 0.3 ms: the launcher loads
a hundred such classes, an agent and a rank thirty. Here all classes share the same methods. Fields,
``replace``, ``asdict`` and pattern matching work as usual. Making an object takes some microseconds
longer, so classes of which a step of training makes objects use the standard decorator. A class and
those that derive from it use the same one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass

    from _typeshed import DataclassInstance
else:

    def dataclass(*, frozen: bool, eq: bool = True, kw_only: bool = False):
        """Return a decorator that makes a frozen dataclass.

        Args:
            frozen: always True; type checkers read it.
            eq: compare by the fields, and not by identity.
            kw_only: take the fields as keywords only.
        """
        assert frozen

        def decorate(cls: type) -> type:
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
            cls.__init__, cls.__repr__ = _init, _repr
            cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_delete
            if eq:
                cls.__eq__, cls.__hash__ = _equals, _hash
            return cls

        return decorate


def _init(self: DataclassInstance, *args: object, **kwargs: object) -> None:
    name = type(self).__name__
    fields = self.__dataclass_fields__.values()
    positional = [field.name for field in fields if not field.kw_only]
    if len(args) > len(positional):
        raise TypeError(f"{name}() takes {len(positional)} values, but got {len(args)}")
    values = dict(zip(positional, args, strict=False))
    if not kwargs.keys().isdisjoint(values):
        twice = ", ".join(sorted(kwargs.keys() & values.keys()))
        raise TypeError(f"{name}() got multiple values for {twice}")
    values.update(kwargs)
    for field in fields:
        if field.name in values:
            value = values.pop(field.name)
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise TypeError(f"{name}() needs a value for {field.name!r}")
        object.__setattr__(self, field.name, value)
    if values:
        raise TypeError(f"{name}() has no field {next(iter(values))!r}")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _repr(self: DataclassInstance) -> str:
    shown = [name for name, field in self.__dataclass_fields__.items() if field.repr]
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def _compared(self: DataclassInstance) -> tuple[object, ...]:
    # From a list: CPython keeps freed tuples, 2,000 of each length, and makes one from a generator
    # without taking any of these.
    fields = self.__dataclass_fields__
    values = [getattr(self, name) for name, field in fields.items() if field.compare]
    return tuple(values)


def _equals(self: DataclassInstance, other: object) -> object:
    if type(other) is type(self):
        return _compared(self) == _compared(other)
    return NotImplemented


def _hash(self: DataclassInstance) -> int:
    return hash(_compared(self))


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
