"""Data sets whose samples have places."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from horovod._train.shard.source import Indexed, Maker, is_of
from horovod._train.shard.torch_loader import (
    check_loader,
    drawing,
    has_plain_order,
    length_of_sampler,
    options_of,
    order_of_sampler,
)
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Lengths that stand for "without end".
_ENDLESS = 1 << 60


class Items(Indexed):
    """Anything with a length and an index, such as a list or a torch data set.

    If it has ``__getitems__``, as data sets of Hugging Face do, that reads a whole batch.
    """

    def __init__(self, data: Any) -> None:
        super().__init__(length_of(data))
        self.name = type(data).__name__
        self._data = data
        self._fingerprint = getattr(data, "_fingerprint", None)

    @property
    def agreed(self) -> list[Any]:
        return [self._fingerprint] if isinstance(self._fingerprint, str) else []

    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        read_many = getattr(self._data, "__getitems__", None)
        for each in indices:
            samples = read_many(each) if callable(read_many) else [self._data[i] for i in each]
            yield maker.collate(list(samples))


class Columns(Indexed):
    """Arrays of one length, in a tuple or dictionary; or one array: a sample is a row of each."""

    def __init__(self, data: Any, name: str = "arrays") -> None:
        self._columns = data
        columns = _columns_of(data)
        lengths = [length_of(column) for column in columns]
        if len(set(lengths)) != 1:
            raise UsageError(f"shard of {name} of {lengths} samples: give arrays of one length")
        super().__init__(lengths[0])
        self.name = name

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.length, len(_columns_of(self._columns))]

    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        for each in indices:
            if maker.is_given:
                yield maker.collate([_mapped(lambda c, i=i: c[i], self._columns) for i in each])
            else:
                yield maker.convert(_mapped(lambda c, each=each: _rows(c, each), self._columns))


class Batches(Indexed):
    """A ``PyDataset`` or ``Sequence`` of Keras, whose items are batches."""

    has_batches = True

    def __init__(self, data: Any) -> None:
        super().__init__(length_of(data))
        self.name = type(data).__name__
        self._data = data

    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        for each in indices:
            yield self._data[each[0]]


class ArrowTable(Indexed):
    """A ``pyarrow.Table``; batches are dictionaries of NumPy arrays, by column."""

    name = "Table"

    def __init__(self, data: Any) -> None:
        super().__init__(data.num_rows)
        self._data = data

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.length, list(self._data.column_names)]

    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        for each in indices:
            rows = self._data.take(each)
            if maker.is_given:
                yield maker.collate(rows.to_pylist())
            else:
                columns = zip(rows.column_names, rows.columns, strict=True)
                # A copy, as what Arrow holds must not be written to.
                yield maker.convert({name: column.to_numpy().copy() for name, column in columns})


class LoaderItems(Indexed):
    """A ``DataLoader`` of a data set with an index: its workers read, in an order of our own."""

    def __init__(self, loader: Any) -> None:
        check_loader(loader, "shard")
        self._loader = loader
        self._has_plain_order = has_plain_order(loader)
        super().__init__(
            len(loader.dataset) if self._has_plain_order else length_of_sampler(loader)
        )
        self.name = f"DataLoader of {type(loader.dataset).__name__}"
        self.batch_size = loader.batch_size
        self.shuffles = is_of(loader.sampler, "torch", "RandomSampler")
        self.drops_last = loader.drop_last
        self.collate = loader.collate_fn

    def refuse_shuffle(self) -> str:
        if self._has_plain_order:
            return ""
        return f"samples come in the order of its {type(self._loader.sampler).__name__}"

    def order_in(self, epoch: int, seed: int) -> Sequence[Any] | None:
        if self._has_plain_order:
            return None
        order = order_of_sampler(self._loader, seed, epoch)
        if len(order) != self.length:
            raise UsageError(
                f"shard of {self.name}: its {type(self._loader.sampler).__name__} yields "
                f"{len(order)} indices in epoch {epoch}, but its length was {self.length} when the "
                "shard was made: make both equal"
            )
        return order

    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        options = {**options_of(self._loader), "collate_fn": maker.collate}
        loader_class = sys.modules["torch.utils.data"].DataLoader
        loader = loader_class(self._loader.dataset, batch_sampler=indices, **options)
        with drawing:  # it takes a seed for its workers from the generator of all threads
            return iter(loader)


def length_of(data: Any) -> int:
    """Return the number of samples; UsageError if there is no end."""
    length = len(data)
    if length >= _ENDLESS:
        raise UsageError(
            f"shard of {type(data).__name__}, which repeats without end: give it without repeat(); "
            "epochs() of the shard repeats it"
        )
    return length


def _columns_of(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, tuple) else [data]


def _mapped(function: Any, data: Any) -> Any:
    """Return the structure with the result of a function for each column."""
    if isinstance(data, dict):
        return {key: function(column) for key, column in data.items()}
    if isinstance(data, tuple):
        return tuple(function(column) for column in data)
    return function(data)


def _rows(column: Any, indices: list[Any]) -> Any:
    if is_of(column, "numpy", "ndarray") or is_of(column, "torch", "Tensor"):
        return column[indices]
    import numpy as np

    if hasattr(column, "__array__"):  # of TensorFlow or JAX
        return np.asarray(column)[indices]
    return np.asarray([column[index] for index in indices])
