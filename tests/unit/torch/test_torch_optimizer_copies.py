"""Copies and pickles of a DistributedOptimizer, with ranks as threads."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from thread_ranks import run_ranks
from torch_training import F64, backward, make_model, wrap


def test_copies_say_that_they_reduce_nothing() -> None:
    def body(_: int) -> None:
        optimizer = wrap(make_model(0, F64))
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            way(optimizer)

    with pytest.warns(UserWarning, match="wrap it again"):
        run_ranks(2, body)


def test_copies_and_pickles_are_plain() -> None:
    def body(_: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        backward(model, 0)
        optimizer.step()
        copied = copy.deepcopy(optimizer)
        assert type(copied) is torch.optim.SGD
        assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD
        copied.step()
        copy.deepcopy(model)
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, io.BytesIO())

    run_ranks(1, body)
