"""Which gradients lie in one bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod._train.bucket_plan import ALIGNMENT, Sized, aligned, plan_buckets


def unit(name: str, *sizes: int, dtype: str = "float32") -> Sized[str]:
    return Sized(tuple(f"{name}{i}" for i in range(len(sizes))), sizes, dtype)


def test_the_first_bucket_is_small_and_large_ones_are_alone() -> None:
    units = [
        unit("a", 64),
        unit("b", 64),
        unit("c", 64),
        unit("d", 640),
        unit("e", 1),
        unit("f", 1),
    ]
    planned = plan_buckets(units, 192, 128)
    assert [bucket.items for bucket in planned] == [("a0", "b0"), ("c0",), ("d0",), ("e0", "f0")]
    assert [bucket.num_bytes for bucket in planned] == [128, 64, 640, 128]
    assert [bucket.offset for bucket in planned] == [0, 128, 192, 832]
    assert planned[-1].offsets == (0, 64)


def test_units_stay_together_and_dtypes_apart() -> None:
    units = [unit("a", 64, 64), unit("b", 64), unit("c", 8, dtype="float64"), unit("d", 8)]
    planned = plan_buckets(units, 1024, 1024)
    assert [bucket.items for bucket in planned] == [("a0", "a1", "b0"), ("c0",), ("d0",)]
    assert [bucket.dtype for bucket in planned] == ["float32", "float64", "float32"]


def test_without_room_each_unit_has_its_own_bucket() -> None:
    assert [bucket.items for bucket in plan_buckets([unit("a", 1), unit("b", 1, 1)], 0, 0)] == [
        ("a0",),
        ("b0", "b1"),
    ]
    assert plan_buckets([]) == []


@given(st.lists(st.lists(st.integers(1, 5000), min_size=1, max_size=3), max_size=30))
def test_nothing_overlaps_and_nothing_is_lost(sizes: list[list[int]]) -> None:
    units = [unit(f"{index}.", *of_unit) for index, of_unit in enumerate(sizes)]
    end = 0
    seen: list[str] = []
    num_bytes = {n: b for u in units for n, b in zip(u.items, u.num_bytes, strict=True)}
    for bucket in plan_buckets(units, 8192, 1024):
        assert bucket.offset == end
        end += bucket.num_bytes
        last = 0
        for item, offset in zip(bucket.items, bucket.offsets, strict=True):
            assert offset == last
            assert offset % ALIGNMENT == 0
            last += aligned(num_bytes[item])
        assert last == bucket.num_bytes
        seen += bucket.items
    assert seen == [item for u in units for item in u.items]
