"""Parameters that are not the same on all ranks."""

from __future__ import annotations

import pytest
from thread_ranks import run_ranks

from horovod._rank import context
from horovod._train.same_parameters import (
    MOST_REPORTED,
    Parameter,
    check_same_parameters,
    describe_differences,
)
from horovod.errors import MismatchError


def parameters(**layouts: str) -> list[Parameter]:
    return [Parameter(name, layout, f"the {name}") for name, layout in layouts.items()]


def test_what_differs_is_named_with_its_ranks() -> None:
    usual = parameters(a="float32 (2,)", b="float32 (3,)")
    other = parameters(a="float64 (2,)", b="float32 (3,)", c="int64 ()")
    assert describe_differences([usual, other, usual], [0, 4, 5]) == (
        "the ranks do not have the same parameters: "
        "'the a' is float32 (2,) on ranks 0, 5, float64 (2,) on rank 4; "
        "'the c' is missing on ranks 0, 5, int64 () on rank 4. "
        "Build the same model on all ranks"
    )


def test_many_differences_are_cut_short() -> None:
    many = parameters(**{f"p{index}": "float32 ()" for index in range(MOST_REPORTED + 3)})
    text = describe_differences([many, []], [0, 1])
    assert "'the p0' is float32 () on rank 0, missing on rank 1" in text
    assert "; and 3 more." in text


@pytest.mark.parametrize("name", ["model", None])
def test_all_ranks_come_to_the_same_end(name: str | None) -> None:
    def body(rank: int) -> str:
        group = context.global_group()
        check_same_parameters(group, parameters(b="x", a="y"), name, "")
        mine = parameters(a="x", b="y") if rank < 2 else parameters(a="x")
        with pytest.raises(MismatchError) as caught:
            check_same_parameters(group, mine, name, "")
        # The ranks are still in step.
        check_same_parameters(group, reversed(parameters(a="x", b="y")), name, "")
        return str(caught.value)

    (text,) = set(run_ranks(3, body))
    assert "'the b' is y on ranks 0, 1, missing on rank 2" in text


def test_the_labels_may_differ() -> None:
    def body(rank: int) -> None:
        own = [Parameter("0", "float32 ()", f"dense_{rank}/kernel")]
        check_same_parameters(context.global_group(), own, "model", "")

    run_ranks(2, body)
