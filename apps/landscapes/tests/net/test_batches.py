"""Batches follow from seed and position, however ranks divide them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from landscapes.train.batches import Stream, to_images

if TYPE_CHECKING:
    from landscapes.data import Pairs


def test_two_ranks_of_four_see_what_one_rank_of_eight_sees(pairs: Pairs) -> None:
    whole = Stream(pairs, 7, 16).batch(16, 8)
    parts = [Stream(pairs, 7, 16).batch(position, 4) for position in (16, 20)]
    for name in ("pictures", "labels", "noise"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(each, name) for each in parts]))


def test_an_epoch_has_each_picture_once_in_an_order_of_its_own(pairs: Pairs) -> None:
    stream, count = Stream(pairs, 7, 16), len(pairs)
    epochs = [[stream.index_at(epoch * count + each) for each in range(count)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(count))
    assert epochs[0] != epochs[1]
    # A batch may reach from one epoch into the next.
    crossing = stream.batch(count - 2, 4)
    assert crossing.pictures.shape == (4, 3, 32, 32)
    assert [stream.index_at(each) for each in (count - 1, count)] == [epochs[0][-1], epochs[1][0]]


def test_flips_turn_picture_and_map_together(pairs: Pairs) -> None:
    stream = Stream(pairs, 7, 16)
    flipped = 0
    for position in range(12):
        batch = stream.batch(position, 1)
        pair = pairs[stream.index_at(position)]
        image, labels = to_images(batch.pictures)[0], batch.labels[0].numpy()
        is_same = (labels == pair.labels).all() and (image == pair.image).all()
        is_flipped = (labels[:, ::-1] == pair.labels).all() and (image[:, ::-1] == pair.image).all()
        assert is_same or is_flipped
        flipped += not is_same
    assert 0 < flipped < 12


def test_a_share_of_maps_is_drawn_by_hand_whatever_the_ranks(pairs: Pairs) -> None:
    plain, whole = Stream(pairs, 7, 16).batch(16, 8), Stream(pairs, 7, 16, 0.5).batch(16, 8)
    for name in ("pictures", "labels", "noise"):
        assert torch.equal(getattr(whole, name), getattr(plain, name))
    assert plain.wanted is plain.labels
    parts = [Stream(pairs, 7, 16, 0.5).batch(position, 4).wanted for position in (16, 20)]
    assert torch.equal(whole.wanted, torch.cat(parts))
    moved = (whole.wanted != whole.labels).float().mean((1, 2))
    assert 0 < int((moved > 0).sum()) < 8
    assert moved.max() < 0.4
    every = Stream(pairs, 7, 16, 1.0).batch(16, 8)
    assert bool(((every.wanted != every.labels).sum((1, 2)) > 0).all())
