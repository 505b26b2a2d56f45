"""Every operation on ranks that are threads: the results of gloo, for all dtypes and shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from backend_operations import BITWISE_CASES, CASES, DTYPES, maker
from thread_groups import GlooGroups, differences, horovod_group
from thread_ranks import ThreadRanks

if TYPE_CHECKING:
    from backend_operations import Case


GLOO = GlooGroups()


def compare(case: Case, size: int, dtypes: dict[str, torch.dtype]) -> None:
    """Run a case on our backend and on gloo in all dtypes; all that differs is in the message."""

    def run(rank: int) -> list[str]:
        ours, theirs = horovod_group(ranks.groups[rank]), GLOO.of(rank, size)
        return [
            f"{name}, rank {rank}: {difference}"
            for name, dtype in dtypes.items()
            for difference in differences(
                case(ours, rank, size, maker(dtype)), case(theirs, rank, size, maker(dtype))
            )
        ]

    with ThreadRanks(size) as ranks:
        try:
            found = ranks.run(run)
        except BaseException as error:
            GLOO.renew()
            if isinstance(error, RuntimeError) and "loo does not support" in str(error):
                pytest.skip(f"this PyTorch has nothing to compare with: {error}")
            raise
        assert found == [[]] * size


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_gloo(name: str, size: int) -> None:
    compare(CASES[name], size, DTYPES)


@pytest.mark.parametrize("name", BITWISE_CASES)
def test_bits_equal_to_gloo(name: str) -> None:
    compare(BITWISE_CASES[name], 3, {"int32": torch.int32, "uint8": torch.uint8})
