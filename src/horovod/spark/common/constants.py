"""Names and limits that the estimators and their data share."""

from __future__ import annotations

__all__ = [
    "ARRAY",
    "CUSTOM_SPARSE",
    "METRIC_PRINT_FREQUENCY",
    "NOCHANGE",
    "TOTAL_BUFFER_MEMORY_CAP_GIB",
]

ARRAY = "array"
"""A vector is written as the array of all its numbers."""

CUSTOM_SPARSE = "custom_sparse_format"
"""A sparse vector is written as ``[n, index…, value…, 0…]``, all rows with the same length."""

NOCHANGE = "nochange"
"""A column is written as it is."""

TOTAL_BUFFER_MEMORY_CAP_GIB = 4
"""Had an effect in earlier versions only."""

METRIC_PRINT_FREQUENCY = 100
"""After how many batches training prints its metrics."""
