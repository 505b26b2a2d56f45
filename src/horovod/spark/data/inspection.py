"""Find what no model can be trained on, from footers: nulls, and arrays of several lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horovod.spark.data.files import ParquetFiles

# Up to here a column of arrays is read to compare all lengths. In larger ones, each row group has
# so many rows that arrays of several lengths show in the number of its values.
_READ_BYTES = 32 << 20


class Findings(NamedTuple):
    """Faults of a column.

    Attributes:
        nulls: how many values, arrays and elements of arrays are null.
        lengths: the least and the most numbers of a row; both the same if all rows are alike, and
            None if they are no arrays.
    """

    nulls: int
    lengths: tuple[int, int] | None


def inspect(files: ParquetFiles, columns: Sequence[str]) -> dict[str, Findings]:
    """Look for nulls and for arrays of several lengths.

    Footers say how many values of a column are null. The column itself is read only if there is no
    such statistic, if an array may have a null or be empty, or if it is a small column of arrays.

    Args:
        files: to look into.
        columns: of these files.

    Returns:
        By column what was found in it.
    """
    return {name: _inspect(files, name) for name in columns}


def _inspect(files: ParquetFiles, name: str) -> Findings:
    kind = files.schema.field(name).type
    is_list = _is_list(kind)
    nulls = files.null_count(name)
    if not is_list:
        return Findings(_nulls_of_all(files, name) if nulls is None else nulls, None)
    if nulls == 0 and files.num_bytes_of(name) > _READ_BYTES:
        ratios = files.values_in_row(name)
        return Findings(0, (int(min(ratios)), -int(-max(ratios) // 1)))
    found = [(_nulls_in(chunk), *_lengths_of(chunk)) for chunk in _chunks(files, name)]
    least, most = min(each[1] for each in found), max(each[2] for each in found)
    return Findings(sum(each[0] for each in found), (least, most))


def _nulls_of_all(files: ParquetFiles, name: str) -> int:
    return sum(_nulls_in(chunk) for chunk in _chunks(files, name))


def _chunks(files: ParquetFiles, name: str) -> Iterator[pa.Array]:
    """The values of a column, never more than a row group of them at a time."""
    for number, groups in enumerate(files.rows):
        with files.open(number) as file:
            for group, num_rows in enumerate(groups):
                if num_rows:
                    table = file.read_row_group(group, columns=[name], use_threads=False)
                    yield from table.column(name).chunks


def _nulls_in(values: pa.Array) -> int:
    count = int(values.null_count)
    return count + _nulls_in(values.flatten()) if _is_list(values.type) else count


def _lengths_of(values: pa.Array) -> tuple[int, int]:
    """The least and the most numbers of an array; of nested ones of what is in them."""
    values = values.drop_null()
    if pa.types.is_fixed_size_list(values.type):
        least = most = values.type.list_size
    else:
        lengths = pc.min_max(pc.list_value_length(values)).as_py()
        least, most = lengths["min"] or 0, lengths["max"] or 0
    inner = values.flatten()
    if not _is_list(inner.type):
        return least, most
    inner_least, inner_most = _lengths_of(inner)
    return least * inner_least, most * inner_most


def _is_list(kind: pa.DataType) -> bool:
    is_any = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_any or pa.types.is_fixed_size_list(kind))
