"""Frozen dataclasses without generated code behave as the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from horovod._base import fast_dataclass


def make(decorator):
    """Return a class and one that derives from it, made by a decorator."""

    @decorator(frozen=True)
    class Base:
        """A base."""

        a: int
        b: str = dataclasses.field(default="b", repr=False)
        c: list[int] = dataclasses.field(default_factory=list, compare=False)

    @decorator(frozen=True, kw_only=True)
    class Derived(Base):
        """A class with a field that is taken by name only."""

        d: float

        def __post_init__(self) -> None:
            if self.d < 0:
                raise ValueError("negative")

    return Base, Derived


BASES, DERIVED = zip(make(dataclasses.dataclass), make(fast_dataclass.dataclass), strict=True)


@fast_dataclass.dataclass(frozen=True)
class Point:
    """A class that pickle finds by its name."""

    x: int
    y: int = 2


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, "x", [3]), {}),
        ((1,), {"c": [3]}),
        ((), {"a": 1, "b": "y"}),
        ((), {}),
        ((1, "x", [3], 4), {}),
        ((1,), {"a": 2}),
        ((1,), {"no": 2}),
    ],
)
def test_objects_are_made_as_by_the_standard_decorator(args, kwargs) -> None:
    standard, fast = BASES
    try:
        expected = standard(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=r"Base\(\)"):
            fast(*args, **kwargs)
        return
    made = fast(*args, **kwargs)
    assert vars(made) == vars(expected)
    assert repr(made) == repr(expected)


def test_defaults_from_a_factory_are_not_shared() -> None:
    _, fast = BASES
    assert fast(1).c is not fast(1).c


def test_fields_by_name_only_and_checks_after_creation() -> None:
    for cls in DERIVED:
        assert cls(1, d=2.0).d == 2.0
        with pytest.raises(TypeError):
            cls(1, "x", [], 2.0)
        with pytest.raises(ValueError, match="negative"):
            cls(1, d=-1.0)


def test_equality_needs_the_same_class_and_ignores_what_is_not_compared() -> None:
    for base, derived in zip(BASES, DERIVED, strict=True):
        assert base(1, "x", [1]) == base(1, "x", [2])
        assert hash(base(1, "x", [1])) == hash(base(1, "x", [2]))
        assert base(1) != base(2)
        assert base(1, "x") != derived(1, "x", d=0.0)


def test_no_field_can_change() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x  # type: ignore[misc]


def test_functions_for_dataclasses_and_patterns_apply() -> None:
    point = Point(1)
    assert dataclasses.replace(point, y=3) == Point(1, 3)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2}
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_objects_can_be_compared_by_identity() -> None:
    @fast_dataclass.dataclass(frozen=True, eq=False)
    class Same:
        """Equal to itself only."""

        x: int

    assert Same(1) != Same(1)
    assert len({Same(1), Same(1)}) == 2
