"""Whether columns fit a model, and lists of one value for each label."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from horovod.errors import UsageError
from horovod.spark.common.util import check_shape_compatibility, to_list

METADATA = {"x": {"shape": 4}, "z": {"shape": 1}, "y": {"shape": 2}, "free": {"shape": None}}


@pytest.mark.parametrize(
    ("features", "labels", "shapes"),
    [
        (["x"], ["y"], {"input_shapes": [[-1, 4]], "output_shapes": [[-1, 2]]}),
        (["x", "z"], ["y"], {"input_shapes": [[-1, 2, 2], [-1, 1]]}),
        (["x"], ["y"], {"output_shapes": [[-1, 3]], "label_shapes": [[-1, 2]]}),
        (["free"], ["free"], {"input_shapes": [[7]], "label_shapes": [[9]]}),
        (["x"], ["y"], {"input_shapes": [(None, 4)]}),
        (["x"], ["y"], {}),
    ],
)
def test_shapes_that_fit(features: list[str], labels: list[str], shapes: dict[str, Any]) -> None:
    check_shape_compatibility(METADATA, features, labels, **shapes)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"input_shapes": [[-1, 4]]}, "2 feature columns .* but 1 shapes of the model's inputs"),
        ({"output_shapes": [[-1, 2], [1]]}, "1 label columns .* but 2 shapes of the model's outp"),
        ({"label_shapes": [[-1, 2], [1]]}, "1 label columns .* but 2 shapes of label_shapes"),
        ({"input_shapes": [[-1, 5], [1]]}, "feature column 'x' has 4 numbers.*which takes 5"),
        ({"output_shapes": [[-1, 3]]}, "label column 'y' has 2 numbers .*which takes 3"),
        ({"output_shapes": [[2]], "label_shapes": [[3]]}, "'y' has 2 numbers.*label_shapes"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_shape_compatibility(METADATA, ["x", "z"], ["y"], **shapes)


@pytest.mark.parametrize(
    ("var", "expected"),
    [(None, None), (1, [1, 1]), ([1], [1, 1]), ([1, 2], [1, 2]), ("ab", ["ab", "ab"])],
)
def test_one_value_for_each(var: Any, expected: Any) -> None:
    assert to_list(var, 2) == expected


@pytest.mark.parametrize("var", [[], [1, 2, 3]])
def test_lists_of_other_lengths(var: list[int]) -> None:
    with pytest.raises(UsageError, match=f"a list of {len(var)} values"):
        to_list(var, 2)
