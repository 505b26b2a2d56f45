"""What a change of ranks does to the global batch."""

from __future__ import annotations

from horovod._train.elastic.global_batch import GlobalBatch


def test_each_change_of_ranks_says_both_global_batches() -> None:
    global_batch = GlobalBatch()
    lines = [global_batch.change(ranks, 32) for ranks in (4, 3, 3, 2, 4)]
    assert global_batch.change(3, 1) == "4 to 3 ranks: a step has 3 samples or batches, not 4"
    assert lines == [
        None,
        "4 to 3 ranks: the global batch is 96 samples instead of 128",
        None,
        "3 to 2 ranks: the global batch is 64 samples instead of 96",
        "2 to 4 ranks: the global batch is 128 samples instead of 64",
    ]
