"""What ranks compare of groups beside shapes and dtypes."""

from __future__ import annotations

import itertools

from horovod._train.structure import Structure, without_numbers


def test_paths_and_their_order_count() -> None:
    lists = (["a", "b"], ["b", "a"], ["a"], ["ab"], ["a, b"], ["['a']", "['b']"], ["[0]", "[1]"])
    for one, other in itertools.permutations(lists, 2):
        assert Structure.of(one, "leaves").mark != Structure.of(other, "leaves").mark
    assert Structure.of(["a", "b"], "leaves") == Structure.of(("a", "b"), "leaves")


def test_the_mark_holds_nothing_and_is_small_enough_for_the_engine() -> None:
    for number in range(100):
        rows, digest = Structure.of([str(number)], "leaf").mark
        assert rows == 0
        assert 1 <= digest <= 2**40


def test_messages_name_the_paths() -> None:
    assert Structure.of(["['a']", "['b']"], "leaves").text == "2 leaves ['a'], ['b']"
    assert Structure.of(["a\nb"], "leaf").text == "1 leaf 'a\\nb'"
    many = Structure.of([f"['{number}']" for number in range(10**4)], "leaves").text
    assert many.startswith("10000 leaves ['0'], ['1'], ")
    assert len(many) < 4100
    assert many.endswith(" …")


def test_numbers_of_automatic_names_do_not_count() -> None:
    for name, expected in (
        ("kernel", "kernel"),
        ("kernel_1", "kernel"),
        ("dense_47_kernel_momentum", "dense_kernel_momentum"),
        ("conv2d_3_kernel", "conv2d_kernel"),
        ("0.bias_12", "0.bias"),
        ("layer7", "layer7"),
    ):
        assert without_numbers(name) == expected
