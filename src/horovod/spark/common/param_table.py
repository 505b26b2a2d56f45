"""A table of Params, from which the attributes and accessors of a class follow."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class ParamRow:
    """A Param of an estimator or a model.

    Attributes:
        name: of the attribute, and of the argument of the constructor.
        doc: what it means.
        default: where it is not set.
        check: returns a value in its proper type, or raises TypeError or ValueError.
        stems: further names of its accessors, beside the one that follows from ``name``.
    """

    name: str
    doc: str
    default: Any = None
    check: Callable[[Any], Any] = TypeConverters.identity
    stems: tuple[str, ...] = ()

    def accessor_stems(self) -> tuple[str, ...]:
        """Names behind ``get`` and ``set``: ``BatchSize`` for ``batch_size``."""
        parts = self.name.strip("_").split("_")
        return ("".join(part[:1].upper() + part[1:] for part in parts), *self.stems)


def with_params(*rows: ParamRow) -> Callable[[T], T]:
    """Gives a class of Params an attribute and accessors for each row of a table.

    ``estimator.batch_size`` is then a Param, as for maps of Params; ``getBatchSize()`` its value;
    ``setBatchSize(value)`` sets it and returns the object.
    """

    def add(cls: T) -> T:
        known = getattr(cls, "param_rows", {})
        cls.param_rows = {**known, **{row.name: row for row in rows}}  # type: ignore[attr-defined]
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, row.check))
            for stem in row.accessor_stems():
                setattr(cls, f"get{stem}", _named(_getter(row), f"get{stem}"))
                setattr(cls, f"set{stem}", _named(_setter(row), f"set{stem}"))
        cls.__signature__ = _signature(cls.param_rows)  # type: ignore[attr-defined]
        return cls

    return add


class TableParams(Params):  # type: ignore[misc]
    """Params that are described by tables; a value of None stands for the default."""

    param_rows: dict[str, ParamRow]

    def __init__(self, **params: Any) -> None:
        super().__init__()
        for row in self.param_rows.values():
            self._setDefault(**{row.name: copy.copy(row.default)})
        self.setParams(**params)

    def setParams(self, **params: object) -> Any:
        """Sets several Params.

        Args:
            params: values by name; None brings the default back.

        Returns:
            This object.

        Raises:
            TypeError: there is no such Param, or its value has the wrong type.
            ValueError: a value is out of range.
        """
        unknown = sorted(set(params) - set(self.param_rows))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no Param {unknown[0]!r}; it has "
                f"{', '.join(sorted(self.param_rows))}"
            )
        for name, value in params.items():
            if value is None:
                self.clear(getattr(self, name))
            else:
                self._set(**{name: value})
        return self

    def value(self, name: str) -> Any:
        """The value of a Param, or its default."""
        return self.getOrDefault(getattr(self, name))


def _getter(row: ParamRow) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.value(row.name)

    get.__doc__ = f"{row.doc[:1].upper()}{row.doc[1:]}"
    return get


def _setter(row: ParamRow) -> Callable[[Any, Any], Any]:
    def set_(self: Any, value: Any) -> Any:
        return self.setParams(**{row.name: value})

    set_.__doc__ = f"Sets {row.name}: {row.doc}"
    return set_


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    function.__qualname__ = name
    return function


def _signature(rows: dict[str, ParamRow]) -> inspect.Signature:
    """Return the signature of the constructor for ``help``."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(row.name, keyword, default=row.default) for row in rows.values()]
    )


def whole_number(least: int) -> Callable[[Any], int]:
    """A check for integers of at least this value."""

    def check(value: Any) -> int:
        number: int = TypeConverters.toInt(value)
        if number < least:
            raise ValueError(f"{value!r} is below {least}")
        return number

    return check
