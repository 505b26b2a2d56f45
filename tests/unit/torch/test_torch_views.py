"""Views of tensors are the same whether PyTorch's own class or a subclass is asked, and by DLPack
or by attributes.
"""

from __future__ import annotations

import pytest
import torch

from horovod._native import Buffer, TensorViews
from horovod.errors import UsageError
from horovod.torch.tensors import dtype_name, mark_written, view

# PyTorch 2.1 and 2.2 lack some.
NAMES = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
DTYPES = [name for name in NAMES.split() if hasattr(torch, name)]


class Subclass(torch.Tensor):
    """What a library may bring."""


def _described(buffer: Buffer) -> tuple[object, ...]:
    return buffer.address, buffer.dtype, buffer.shape, buffer.device, buffer.num_bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 1)])
def test_own_classes_and_subclasses_are_viewed_alike(dtype: str, shape: tuple[int, ...]) -> None:
    plain = torch.zeros(shape, dtype=getattr(torch, dtype))
    name = dtype_name(plain.dtype)
    expected = (plain.data_ptr(), name, shape, -1, plain.numel() * plain.element_size())
    assert _described(view(plain)) == expected
    assert _described(view(plain.as_subclass(Subclass))) == expected
    if plain.is_floating_point():
        assert _described(view(torch.nn.Parameter(plain))) == expected


def test_own_classes_are_asked_by_dlpack_where_pytorch_has_its_functions() -> None:
    # Without names of dtypes, attributes tell nothing.
    views = TensorViews({}, torch.strided, [torch.Tensor, torch.nn.Parameter])
    has_functions = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    plain = torch.zeros(2)
    for tensor in (plain, torch.nn.Parameter(plain)):
        assert (views.view(tensor) is not None) == has_functions
    assert views.view(plain.as_subclass(Subclass)) is None


def test_part_of_a_tensor_is_viewed_where_it_begins() -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    assert view(whole[1:3]).address == whole.data_ptr() + 12
    # Extents of 1 may have any stride.
    assert view(whole.as_strided((1, 3), (7, 1))).shape == (1, 3)
    assert view(whole[:, :0]).num_bytes == 0


@pytest.mark.parametrize("own", [torch.Tensor, Subclass])
def test_what_has_no_such_memory_is_refused_by_both_ways(own: type[torch.Tensor]) -> None:
    for tensor in (
        torch.zeros(3, 2).t(),
        torch.zeros(6)[::2],
        torch.zeros(2, 1).expand(2, 3),
        torch.ones(1, dtype=torch.complex64).conj().imag,
    ):
        with pytest.raises(UsageError):
            view(tensor.as_subclass(own))


def test_attributes_that_are_none_of_a_tensor_are_no_view() -> None:
    views = TensorViews({torch.float32: "float32"}, torch.strided, [torch.Tensor])
    assert views.view(None) is None
    assert views.view([1.0]) is None
    assert views.view(torch) is None
    with pytest.raises(UsageError, match="float7 is not supported"):
        TensorViews({torch.float32: "float7"}, torch.strided, [torch.Tensor])
    with pytest.raises(UsageError, match="no class"):
        TensorViews({}, torch.strided, [])


def test_a_written_tensor_has_a_new_version_unless_it_has_none() -> None:
    tensor = torch.zeros(2)
    with torch.inference_mode():
        without = torch.zeros(2)
    mark_written((tensor, without))
    mark_written((tensor,))
    mark_written((without,))
    assert tensor._version == 2
