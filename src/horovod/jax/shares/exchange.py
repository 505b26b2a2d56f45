"""What ranks exchange in a step of an optimizer whose state is divided among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from horovod._rank.reduction import ReduceOp
from horovod._train.compression import refuse_quantizing
from horovod._train.gradients import split_list
from horovod._train.reduce_op import Average
from horovod._train.weights import check_weighting
from horovod.errors import UsageError
from horovod.jax.calls import Leaves, collective_of, run, sendable
from horovod.jax.compression import Compression
from horovod.jax.ops import allreduce, reducescatter, weight_operand
from horovod.jax.shares.values import Share, Value, Whole, whole_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._train.compression import CompressorLike
    from horovod._train.division import Division
    from horovod._train.process_set import ProcessSet


@dataclass(frozen=True)
class Exchange:
    """The collectives of one optimizer.

    Attributes:
        name: what the names of its operations begin with.
        process_set: the ranks.
        op: Average or Sum of the gradients.
        compression: of the gradients.
        predivide_factor: gradients are divided by it before the sum, and by the rest after.
        num_groups: how many operations take the gradients, and how many the updates.
    """

    name: str
    process_set: ProcessSet
    op: ReduceOp = Average
    compression: CompressorLike = Compression.none
    predivide_factor: float = 1.0
    num_groups: int = 1

    def scatter(
        self, gradients: Sequence[Any], paths: Sequence[str], weight: Any, division: Division
    ) -> list[Value]:
        """Return this rank's share of the reduced gradients; scalars are whole on all ranks.

        Args:
            gradients: of this rank.
            paths: where they are in their tree.
            weight: of this rank in the average; None for equal ones.
            division: which elements this rank has.
        """
        arrays = [
            sendable(leaf, f"the gradient {path}", keeps_numpy=False)
            for leaf, path in zip(gradients, paths, strict=True)
        ]
        if division.size == 1:
            return [Share(a.reshape(-1), a.shape) if a.ndim else Whole(a) for a in arrays]
        op, factor = self.op, 1.0
        if weight is None:
            factor = self.predivide_factor
        else:
            check_weighting(weight, self.op)
            arrays, op = self._weighted(arrays, weight), ReduceOp.SUM
        options: dict[str, Any] = {
            "op": op, "compression": self.compression, "prescale_factor": 1.0 / factor,
            "postscale_factor": factor, "process_set": self.process_set,
        }  # fmt: skip
        results: list[Any] = [None] * len(arrays)
        scalars = [i for i, array in enumerate(arrays) if not array.ndim]
        for number, part in enumerate(self._split([i for i, a in enumerate(arrays) if a.ndim])):
            flat = {f"{i:06}{paths[i]}": arrays[i].reshape(-1) for i in part}
            got = reducescatter(flat, name=f"{self.name}.gradients.{number}", **options)
            for i in part:
                results[i] = Share(got[f"{i:06}{paths[i]}"], arrays[i].shape)
        if scalars:
            tree = {f"{i:06}{paths[i]}": arrays[i] for i in scalars}
            got = allreduce(tree, name=f"{self.name}.scalars", **options)
            for i in scalars:
                results[i] = Whole(got[f"{i:06}{paths[i]}"])
        return results

    def gather(
        self, values: Sequence[Value], paths: Sequence[str], division: Division
    ) -> list[Any]:
        """Return the whole arrays of which each rank has its share.

        Args:
            values: those that are whole are not sent.
            paths: where they are in their tree.
            division: which elements this rank has.
        """
        shares = {i: value for i, value in enumerate(values) if isinstance(value, Share)}
        results = [None if i in shares else whole_of(value) for i, value in enumerate(values)]
        if division.size == 1:
            for i, share in shares.items():
                results[i] = share.piece.reshape(share.shape)
            return results
        for number, part in enumerate(self._split([*shares])):
            got = self._gather(
                [shares[i] for i in part], [paths[i] for i in part],
                f"{self.name}.updates.{number}", division,
            )  # fmt: skip
            for i, array in zip(part, got, strict=True):
                results[i] = array
        return results

    def reduce_numbers(self, numbers: list[Any], op: ReduceOp, name: str) -> list[Any]:
        """Return the reductions of some numbers over the ranks."""
        tree = {f"{i:06}": number for i, number in enumerate(numbers)}
        got = allreduce(tree, op=op, name=f"{self.name}.{name}", process_set=self.process_set)
        return list(got.values())

    def _gather(
        self, shares: list[Share], paths: list[str], name: str, division: Division
    ) -> list[Any]:
        pieces = [share.piece for share in shares]
        keys = [f"{i:06}{path}" for i, path in enumerate(paths)]
        grouped, described = Leaves(pieces, keys, jax.tree.structure(pieces)).description()
        collective, _ = collective_of(
            "allgather", self.process_set, name, grouped=grouped, tree=described
        )
        rows = tuple(division.counts(share.shape) for share in shares)
        got = run(pieces, collective.but(rows=rows))
        return [array.reshape(share.shape) for array, share in zip(got, shares, strict=True)]

    def _weighted(self, arrays: list[Any], weight: Any) -> list[Any]:
        """Return gradients whose sum over the ranks is their weighted average."""
        own = weight_operand(weight)
        name = f"{self.name}.weight"
        total = allreduce(own, op=ReduceOp.SUM, name=name, process_set=self.process_set)
        # Weights that a program computes are checked where they are used as such.
        checked = allreduce(own, weight=own, name=f"{name}.checked", process_set=self.process_set)
        total = total + 0 * checked
        share = own / jnp.where(total == 0, 1.0, total)

        def scaled(array: Any) -> Any:
            wide = jnp.promote_types(array.dtype, jnp.float32)
            times = array.astype(wide) * share.astype(wide)
            # What does not count may be NaN.
            return jnp.where(own == 0, jnp.zeros_like(times), times).astype(array.dtype)

        return [scaled(array) for array in arrays]

    def _split(self, places: list[int]) -> list[list[int]]:
        """Return the places of the arrays of each operation; several run from the last one."""
        if self.num_groups == 1:
            return [places] if places else []
        return [part for part in split_list(places[::-1], self.num_groups) if part]


def exchange_of(options: dict[str, Any]) -> Exchange:
    """Return the collectives of an optimizer with the options of ``DistributedOptimizer``.

    Raises:
        UsageError: an option does not go with ``shard_state``.
    """
    groups = options["groups"]
    refuse_quantizing(options["compression"], "shard_state=True")
    if options["op"] not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"shard_state=True with op={options['op'].name.title()}: a rank would need whole "
            "gradients; use hvd.Average or hvd.Sum"
        )
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int)):
        raise UsageError("shard_state=True with groups of labels: give a number of groups, or none")
    if groups is not None and groups < 1:
        raise UsageError(f"groups={groups} must be at least 1, or None")
    return Exchange(
        options["name"], options["process_set"], options["op"], options["compression"],
        options["gradient_predivide_factor"], groups or 1,
    )  # fmt: skip
