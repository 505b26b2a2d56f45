"""What a quantized allreduce must compute, written in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from horovod._rank.reduction import QuantizedFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BLOCK = 256
_MOST = {
    QuantizedFormat.INT8: np.float32(127),
    QuantizedFormat.FP8_E4M3: np.float32(448),
    QuantizedFormat.FP8_E5M2: np.float32(57344),
}
_TORCH = {
    QuantizedFormat.FP8_E4M3: torch.float8_e4m3fn,
    QuantizedFormat.FP8_E5M2: torch.float8_e5m2,
}


def rounded(values: Floats, wire: QuantizedFormat) -> Floats:
    """Return finite values as other hosts read them."""
    blocks = [_rounded_block(block, wire) for block in _blocks(values)]
    return np.concatenate([*blocks, np.zeros(0, np.float32)])


def _blocks(values: Floats) -> list[Floats]:
    return [values[begin : begin + BLOCK] for begin in range(0, values.size, BLOCK)]


def _rounded_block(values: Floats, wire: QuantizedFormat) -> Floats:
    largest, most = np.abs(values).max(), _MOST[wire]
    is_small = largest < np.float32(2.0**-90)
    scaled = values * (np.float32(0) if is_small else most / largest)
    if wire is QuantizedFormat.INT8:
        codes = np.rint(scaled) + np.float32(0)  # which has no -0
    else:
        codes = torch.from_numpy(scaled).to(_TORCH[wire]).to(torch.float32).numpy()
    return codes * (np.float32(0) if is_small else largest / most)


def reduced(
    hosts: Sequence[Sequence[Floats]], wire: QuantizedFormat, kept: Sequence[Floats] = ()
) -> tuple[Floats, Floats]:
    """Return the sum over all ranks, and what did not reach it, over all ranks together.

    Args:
        hosts: the values of the ranks of each host.
        wire: how they travel between hosts.
        kept: what each rank has kept of earlier reductions, host after host; none for zeros.
    """
    left = np.zeros_like(hosts[0][0])
    total: Floats | None = None
    rank = 0
    for ranks in hosts:
        own: Floats | None = None
        for values in ranks:
            given = values + kept[rank] if len(kept) else values
            own = given if own is None else own + given
            rank += 1
        assert own is not None
        sent = rounded(own, wire)
        left += own - sent
        total = sent if total is None else total + sent
    assert total is not None
    result = rounded(total, wire)
    return result, left + (total - result)
