"""One rank of test_jax_devices.py: it has several devices. Prints the names of the cases."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import horovod.jax as hvd

ROWS, COLUMNS = 8, 3


def _mesh() -> Any:
    return Mesh(np.array(jax.devices()), "d")


def _values(rank: int) -> Any:
    return np.random.default_rng(rank).standard_normal((ROWS, COLUMNS))


def _expect(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12, atol=1e-12)


def arrays_over_several_devices_come_back_as_they_were(rank: int, size: int) -> None:
    """Outside of programs, by way of the host's memory."""
    sums = sum(_values(r) for r in range(size))
    sharding = NamedSharding(_mesh(), PartitionSpec("d"))
    split = jax.device_put(_values(rank), sharding)
    got = hvd.allreduce({"split": split, "one": jnp.ones(3)}, op=hvd.Sum)
    _expect(got["split"], sums)
    assert got["split"].sharding == sharding
    _expect(got["one"], size)
    assert got["one"].devices() == {jax.devices()[0]}
    last = jax.device_put(_values(rank), jax.devices()[-1])
    assert hvd.allreduce(last).devices() == last.devices()
    _expect(hvd.allreduce(split, weight=1.0 + rank), sum((1 + r) * _values(r) for r in range(size))
            / sum(1 + r for r in range(size)))  # fmt: skip
    rows = hvd.allgather(split[: ROWS - rank])  # uneven
    _expect(rows, np.concatenate([_values(r)[: ROWS - r] for r in range(size)]))
    gathered = hvd.allgather(split)
    assert gathered.sharding == sharding
    _expect(gathered, np.concatenate([_values(r) for r in range(size)]))
    _expect(hvd.broadcast(split, 1), _values(1))
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    _expect(hvd.reducescatter(split, op=hvd.Sum), sums[mine])
    _expect(hvd.alltoall(split), np.concatenate([_values(r)[mine] for r in range(size)]))


def programs_over_several_devices_are_refused(rank: int, size: int) -> None:
    spec = PartitionSpec("d")
    split = jax.device_put(_values(rank), NamedSharding(_mesh(), spec))
    mapped = jax.shard_map(hvd.allreduce, mesh=_mesh(), in_specs=spec, out_specs=spec)
    for program in (jax.jit(mapped), jax.jit(lambda x: hvd.allreduce(x) + 1)):
        refused = ""
        try:
            program(split)
        except NotImplementedError as error:
            refused = str(error)
        assert "start one rank for each device instead" in refused, refused


CASES = (
    arrays_over_several_devices_come_back_as_they_were,
    programs_over_several_devices_are_refused,
)

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    hvd.init()
    for case in CASES:
        case(hvd.rank(), hvd.size())
        print(case.__name__, flush=True)
    hvd.shutdown()
