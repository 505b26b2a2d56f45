"""Gradients of low rank on the wire: PowerSGD.

T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization" (2019), https://arxiv.org/abs/1905.13727, algorithms 1 and 2. A gradient M
of n rows and m columns becomes P Q^T, with P of n x r and Q of m x r: one step of power iteration
from the Q of the last step. P and Q are averaged over the ranks. What P Q^T lacks of a rank's own
M is added to its next gradient.

All ranks must end with the same bits, also on unlike machines and with unlike numbers of threads.
So what makes the result, from the averaged P and Q on, are sums and products of single elements in
an order of our own, and no matrix products of a library.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from horovod._train.compression import OptimizerCompressor
from horovod.errors import UsageError
from horovod.torch.devices import wait
from horovod.torch.gradients_in_flight import put

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from horovod._native import Handle

# A column of P that is that much shorter without its share of the columns before is noise.
_LEAST_PIVOT = 1e-10


@dataclass(frozen=True)
class PowerSGDCompressor(OptimizerCompressor):
    """How :meth:`horovod.torch.Compression.powersgd` compresses the gradients of an optimizer.

    Attributes:
        rank: r, the columns of P and Q.
        least_ratio: gradients are left alone whose P and Q do not take that many times fewer
            bytes.

    Raises:
        UsageError: the rank is no whole number above 0, or the ratio is not finite or below 1.
    """

    rank: int = 2
    least_ratio: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UsageError(f"powersgd(rank={self.rank!r}): the rank is a whole number above 0")
        if not (math.isfinite(self.least_ratio) and self.least_ratio >= 1.0):
            raise UsageError(f"powersgd(least_ratio={self.least_ratio!r}) must be at least 1")

    def shape_of(self, param: torch.Tensor) -> tuple[int, int, int] | None:
        """Return n, m and r of a parameter's gradient; None if it travels as it is.

        Vectors do, integers and complex numbers, and what P and Q would not make smaller.
        """
        if param.dim() < 2 or not param.is_floating_point() or param.numel() == 0:
            return None
        rows = param.shape[0]
        columns = param.numel() // rows
        rank = min(self.rank, rows, columns)
        sent_bytes = rank * (rows + columns) * _working_dtype(param).itemsize
        if sent_bytes * self.least_ratio > rows * columns * param.element_size():
            return None
        return rows, columns, rank


class LowRankMemory:
    """What this rank keeps from step to step, by parameter: its errors, and the Q of all ranks.

    Errors belong to this rank. A rank that begins with another Q than the others gets the same
    results as they do, and has the same Q after one step.

    Args:
        names: of the parameters, the same on all ranks.
    """

    key = "powersgd"

    def __init__(self, names: Mapping[torch.Tensor, str]) -> None:
        self._names = names
        self._errors: dict[str, torch.Tensor] = {}
        self._factors: dict[str, torch.Tensor] = {}
        # Of gradients that no step has used yet.
        self._new: dict[str, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def begin(self, param: torch.Tensor, shape: tuple[int, int, int]) -> tuple[Any, torch.Tensor]:
        """Return the error of a parameter, None if there is none yet, and its Q.

        Args:
            param: the parameter.
            shape: n, m and r of its gradient.

        Raises:
            UsageError: they were loaded, and belong to a gradient of another shape.
        """
        rows, columns, rank = shape
        name, dtype = self._names[param], _working_dtype(param)
        self._new.pop(name, None)
        error, factor = self._errors.get(name), self._factors.get(name)
        if factor is None:
            factor = _first_factor(name, columns, rank)
        if factor.shape != (columns, rank) or (
            error is not None and error.shape != (rows, columns)
        ):
            raise UsageError(
                f"the state of PowerSGD for {name} is that of another model or rank: Q has the "
                f"shape {tuple(factor.shape)}, but the gradient needs {(columns, rank)}"
            )
        self._factors[name] = factor = factor.to(param.device, dtype)
        if error is not None:
            self._errors[name] = error = error.to(param.device, dtype)
        return error, factor

    def propose(
        self, param: torch.Tensor, error: torch.Tensor | None, factor: torch.Tensor
    ) -> None:
        """Note what to keep if a step uses the gradient of this parameter.

        Args:
            param: the parameter.
            error: float (n, m), None to leave the one that there is.
            factor: Q, (m, r).
        """
        self._new[self._names[param]] = error, factor

    def keep(self) -> None:
        """Keep what belongs to the gradients that have left, as a step has used these."""
        for name, (error, factor) in self._new.items():
            self._factors[name] = factor
            if error is not None:
                self._errors[name] = error
        self._new.clear()

    def state_dict(self, rank: int) -> dict[str, Any]:
        """Return all of it, as a state that says whose the errors are; tensors are the live ones.

        Args:
            rank: this rank.
        """
        return {"rank": rank, "errors": dict(self._errors), "factors": dict(self._factors)}

    def load_state_dict(self, state: Mapping[str, Any] | None, rank: int) -> None:
        """Take Q from any rank's state, and errors from what this rank has saved.

        Args:
            state: what :meth:`state_dict` returned, or None.
            rank: this rank.
        """
        self._new.clear()
        self._errors.clear()
        self._factors.clear()
        if state is None:
            return
        self._factors.update((k, v.detach().clone()) for k, v in state["factors"].items())
        if state["rank"] == rank:
            self._errors.update((k, v.detach().clone()) for k, v in state["errors"].items())


@dataclass
class LowRankInFlight:
    """A gradient on its way as P, and then as Q.

    Attributes:
        param: whose gradient it is.
        gradient: ``param.grad`` when it was launched, None if there was none.
        whole: M, this rank's gradient with its error, (n, m).
        counts: whether this rank's gradient counts, so that its error changes.
        left: P of this rank, (n, r); the average once that has come.
        old_factor: Q of the last step, (m, r).
        memory: keeps what is left.
        submit: sends a tensor into another one; its first argument tells P from Q.
    """

    param: torch.Tensor
    gradient: torch.Tensor | None
    whole: torch.Tensor
    counts: bool
    left: torch.Tensor
    old_factor: torch.Tensor
    memory: LowRankMemory
    submit: Callable[[str, torch.Tensor, torch.Tensor], Handle]
    _handle: Handle = field(init=False)
    _is_second: bool = field(init=False, default=False)
    _columns: list[int] = field(init=False, default_factory=list)
    _own: torch.Tensor | None = field(init=False, default=None)
    _right: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._handle = self.submit("p", self.left, self.left)

    def advance(self) -> None:
        """Wait for P, and send Q.

        Raises:
            HorovodInternalError: the reduction of P failed.
        """
        if self._is_second:
            return
        wait(self._handle, self.left)
        with torch.no_grad(), _without_autocast(self.left):
            orthonormal, self._columns = orthonormalized(self.left)
            if orthonormal is None:  # alike on all ranks
                self._is_second = True
                return
            own = (self.whole.t() @ orthonormal).contiguous()
            right = torch.empty_like(own)
        # Fails if the job has; then P is still what is waited for, and the next call fails, too.
        self._handle = self.submit("q", own, right)
        self.left, self._own, self._right, self._is_second = orthonormal, own, right, True

    def wait(self) -> None:
        """Wait for the end of both reductions.

        Raises:
            HorovodInternalError: one of them failed.
        """
        self.advance()
        if self._right is not None:
            wait(self._handle, self._right)

    def write_back(self, unused: Container[torch.Tensor]) -> None:
        """Put P Q^T into ``p.grad``, and note what it lacks.

        Where a rank had infinite values or NaN, all of the gradient becomes NaN, and errors stay.
        """
        with torch.no_grad():
            if self._own is None or self._right is None:
                reduced = torch.full_like(self.whole, math.nan)
            else:
                reduced = outer_sum(self.left, self._right)
                if self.param not in unused and bool(torch.isfinite(self._right).all()):
                    self._note_rest(self._own, self._right)
            made = reduced.reshape(self.param.shape).to(self.param.dtype)
        put(self.param, self.gradient, made, 0, unused)

    def _note_rest(self, own: torch.Tensor, right: torch.Tensor) -> None:
        error = self.whole.addmm_(self.left, own.t(), alpha=-1) if self.counts else None
        factor = self.old_factor
        if len(self._columns) == factor.shape[1]:
            factor = right
        elif self._columns:
            factor = factor.clone()
            factor[:, self._columns] = right[:, self._columns]
        self.memory.propose(self.param, error, factor)


def launch(
    param: torch.Tensor,
    source: torch.Tensor | None,
    shape: tuple[int, int, int],
    memory: LowRankMemory,
    submit: Callable[[str, torch.Tensor, torch.Tensor], Handle],
) -> LowRankInFlight:
    """Send the gradient of a parameter.

    Args:
        param: the parameter.
        source: its gradient on this rank, dense; None if this rank does not count.
        shape: n, m and r.
        memory: of the optimizer.
        submit: sends a tensor into another one; its first argument is "p" or "q".

    Raises:
        UsageError: the state that was loaded is that of another model.
    """
    rows, columns, _ = shape
    error, factor = memory.begin(param, shape)
    with torch.no_grad(), _without_autocast(factor):
        if source is None:
            whole = torch.zeros(rows, columns, dtype=factor.dtype, device=factor.device)
        else:
            whole = source.reshape(rows, columns).to(factor.dtype, copy=True)
            if error is not None:
                whole += error
        left = (whole @ factor).contiguous()
    return LowRankInFlight(
        param, param.grad, whole, source is not None, left, factor, memory, submit
    )


def _without_autocast(tensor: torch.Tensor) -> torch.autocast:
    """A backward pass inside of ``torch.autocast`` would make products of less precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def orthonormalized(left: torch.Tensor) -> tuple[torch.Tensor | None, list[int]]:
    """Make the columns orthonormal, with the same bits wherever it is done.

    This is the Gram-Schmidt process with the coefficients of a Cholesky decomposition, in float64.
    A column that is a combination of those before it becomes zero.

    Args:
        left: P, (n, r), of any floating dtype.

    Returns:
        The columns in the dtype of ``left``, None if they are not finite; and the numbers of those
        that are not zero.
    """
    wide = left.double()
    rank = left.shape[1]
    products = (wide.unsqueeze(2) * wide.unsqueeze(1)).reshape(-1, rank * rank)
    flat = _sum_of_rows(products).tolist()
    if not all(map(math.isfinite, flat)):
        return None, []
    factors, kept = _cholesky([flat[i * rank : (i + 1) * rank] for i in range(rank)])
    made = torch.zeros_like(wide)
    for k in kept:
        column = wide[:, k]
        for j in kept:
            if j < k:
                column = column - made[:, j] * factors[j][k]
        made[:, k] = column / factors[k][k]
    return made.to(left.dtype), kept


def outer_sum(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return P Q^T, with the same bits wherever it is computed.

    Args:
        left: P, (n, r).
        right: Q, (m, r).

    Returns:
        (n, m), in the same dtype.
    """
    total = left[:, :1] * right[:, 0]
    for k in range(1, left.shape[1]):
        total += left[:, k : k + 1] * right[:, k]
    return total


def _sum_of_rows(values: torch.Tensor) -> torch.Tensor:
    """Add up rows in pairs: by additions of elements, whose order depends on nothing else."""
    while len(values) > 1:
        half = len(values) // 2
        folded = values[:half] + values[half : 2 * half]
        if len(values) % 2:
            folded[0] += values[-1]
        values = folded
    return values[0]


def _cholesky(gram: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[int]]:
    """Return R of gram = R^T R, without the columns that add nothing, and the others' numbers."""
    rank = len(gram)
    factors = [[0.0] * rank for _ in range(rank)]
    kept: list[int] = []
    for k in range(rank):
        rest = gram[k][k]
        for j in kept:
            share = gram[j][k]
            for i in kept:
                if i < j:
                    share -= factors[i][j] * factors[i][k]
            factors[j][k] = share / factors[j][j]
            rest -= factors[j][k] * factors[j][k]
        if rest > _LEAST_PIVOT * gram[k][k]:
            factors[k][k] = math.sqrt(rest)
            kept.append(k)
    return factors, kept


def _working_dtype(param: torch.Tensor) -> torch.dtype:
    return torch.float64 if param.dtype is torch.float64 else torch.float32


def _first_factor(name: str, columns: int, rank: int) -> torch.Tensor:
    """Return a random Q that depends on the name of the parameter alone."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode()))
    return torch.randn(columns, rank, generator=generator, device="cpu", dtype=torch.float32)
