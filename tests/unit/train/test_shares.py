"""How parameters are divided into one share for each rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod._train.shares import Extent, Piece, Shares, copies_between, divide
from horovod.errors import UsageError

ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8, "complex128": 16}


def extents_of(*sizes: int, kind: str = "float32") -> list[Extent]:
    return [Extent(size, ITEM_BYTES[kind], kind) for size in sizes]


extents = st.lists(
    st.builds(
        lambda size, kind: Extent(size, ITEM_BYTES[kind], kind),
        st.integers(0, 300),
        st.sampled_from(sorted(ITEM_BYTES)),
    ),
    max_size=12,
)


def all_pieces(shares: Shares) -> list[Piece]:
    return [piece for rank in range(shares.num_ranks) for piece in shares.pieces(rank)]


def test_a_parameter_is_cut_where_a_share_ends() -> None:
    shares = divide(extents_of(40, 3), 2)
    assert shares.pieces(0) == (Piece(0, 0, 32),)
    assert shares.pieces(1) == (Piece(0, 32, 40), Piece(1, 0, 3))
    (bucket,) = shares.buckets
    assert (bucket.offsets, bucket.share_elements, bucket.num_elements) == ((0, 48), 32, 64)
    assert bucket.place_of(Piece(0, 32, 40)) == 32
    assert bucket.place_of(Piece(1, 1, 3)) == 49


def test_kinds_have_their_own_buckets_and_the_order_is_that_of_gradients() -> None:
    mixed = [*extents_of(8), *extents_of(8, kind="float16"), *extents_of(8)]
    shares = divide(mixed, 1, order=(2, 1, 0), bucket_bytes=None)
    assert [(bucket.kind, bucket.parameters) for bucket in shares.buckets] == [
        ("float32", (2, 0)),
        ("float16", (1,)),
    ]
    assert [shares.bucket_of(index) for index in range(3)] == [0, 1, 0]


def test_buckets_are_closed_when_they_are_full() -> None:
    shares = divide(extents_of(*[1 << 18] * 4), 2, bucket_bytes=2 << 20)
    assert [bucket.parameters for bucket in shares.buckets] == [(0,), (1, 2), (3,)]


def test_shares_of_less_than_a_line_leave_later_ranks_without_pieces() -> None:
    shares = divide(extents_of(5), 3)
    assert [shares.pieces(rank) for rank in range(3)] == [(Piece(0, 0, 5),), (), ()]
    assert divide([], 3).buckets == ()
    assert divide(extents_of(0), 2).pieces(0) == ()


@given(extents, st.integers(1, 7), st.sampled_from([None, 64, 1000]), st.randoms())
def test_each_element_is_in_one_share_and_shares_are_equal(
    sizes: list[Extent], num_ranks: int, bucket_bytes: int | None, random
) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    shares = divide(sizes, num_ranks, order=order, bucket_bytes=bucket_bytes)
    elements = [
        (piece.parameter, element)
        for piece in all_pieces(shares)
        for element in range(piece.begin, piece.end)
    ]
    assert sorted(elements) == [
        (index, element)
        for index, extent in enumerate(sizes)
        for element in range(extent.num_elements)
    ]
    for bucket in shares.buckets:
        for rank in range(num_ranks):
            end = rank * bucket.share_elements
            for piece in bucket.pieces(rank):
                assert bucket.place_of(piece) >= end
                end = bucket.place_of(piece) + piece.num_elements
            assert end <= (rank + 1) * bucket.share_elements
        item_bytes = ITEM_BYTES[bucket.kind]
        assert bucket.share_elements * item_bytes % 64 == 0
        own = sum(-(-size * item_bytes // 64) * 64 for size in bucket.sizes)
        assert bucket.num_elements * item_bytes < own + 64 * num_ranks


@given(extents, st.integers(1, 6), st.integers(1, 6), st.data())
def test_shares_move_to_another_number_of_ranks(
    sizes: list[Extent], before: int, after: int, data: st.DataObject
) -> None:
    have = data.draw(st.permutations(all_pieces(divide(sizes, before, bucket_bytes=256))))
    want = all_pieces(divide(sizes, after))
    filled = [[None] * piece.num_elements for piece in want]
    for copy in copies_between(have, want):
        source = have[copy.source]
        for element in range(copy.num_elements):
            value = (source.parameter, source.begin + copy.source_begin + element)
            assert source.begin + copy.source_begin + element < source.end
            assert filled[copy.target][copy.target_begin + element] is None
            filled[copy.target][copy.target_begin + element] = value
    for piece, values in zip(want, filled, strict=True):
        assert values == [(piece.parameter, e) for e in range(piece.begin, piece.end)]


def test_of_equal_elements_the_first_are_taken() -> None:
    have = [Piece(0, 4, 8), Piece(0, 0, 8), Piece(0, 0, 4)]
    assert [(c.source, c.num_elements) for c in copies_between(have, [Piece(0, 0, 8)])] == [(1, 8)]
    have = [Piece(0, 0, 5), Piece(0, 0, 8)]
    (first, rest) = copies_between(have, [Piece(0, 2, 7)])
    assert (first.source, first.source_begin, first.target_begin, first.num_elements) == (
        0,
        2,
        0,
        3,
    )
    assert (rest.source, rest.source_begin, rest.target_begin, rest.num_elements) == (1, 5, 3, 2)


def test_what_no_share_holds_is_named() -> None:
    have = [Piece(1, 0, 4), Piece(1, 6, 9)]
    with pytest.raises(UsageError, match=r"parameter head\.weight is incomplete: .* from 4 on"):
        copies_between(have, [Piece(1, 2, 9)], ["body", "head.weight"])
    with pytest.raises(UsageError, match="parameter 0 is incomplete"):
        copies_between(have, [Piece(0, 0, 1)])
