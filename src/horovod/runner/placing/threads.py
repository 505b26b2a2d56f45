"""Chooses the number of compute threads of a host's ranks if the user does not. Pure.

Each framework starts as many threads as the machine has cores. Ranks that share the cores then
wait for each other's threads: a step takes several times as long as with one thread for each core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# By variable those that mean the same and that the user may have set in its place. MKL, OpenBLAS
# and BLIS follow OpenMP's variable unless they have one of their own; so PyTorch and NumPy do, too.
_POOLS = {
    "OMP_NUM_THREADS": (),
    "TF_NUM_INTRAOP_THREADS": (),
    "TF_NUM_INTEROP_THREADS": (),
    "PJRT_NPROC": ("NPROC",),  # of XLA's client for the CPU: JAX
}
# Of TensorFlow: one operation that blocks, such as a Python function, must not stop all others.
_LEAST = {"TF_NUM_INTEROP_THREADS": 2}


def threads_of_rank(num_cores: int, num_ranks: int) -> int:
    """A rank's share of the cores of its host; at least 1.

    Args:
        num_cores: that the ranks of the host may keep busy together.
        num_ranks: of the host.
    """
    return max(1, num_cores // num_ranks)


def thread_variables(environ: Mapping[str, str], num_cores: int, num_ranks: int) -> dict[str, str]:
    """The variables that divide the cores of a host among its ranks.

    Args:
        environ: of the ranks; what the user set there stays.
        num_cores, num_ranks: see :func:`threads_of_rank`.

    Returns:
        Only variables that are not set yet; none for a rank that has the host for itself.
    """
    if num_ranks == 1:
        return {}
    share = threads_of_rank(num_cores, num_ranks)
    return {
        name: str(max(share, _LEAST.get(name, 1)))
        for name, others in _POOLS.items()
        if not any(environ.get(each) for each in (name, *others))
    }


def describe(variables: Mapping[str, str], num_cores: int, num_ranks: int) -> str:
    """One line for the user; empty if nothing was set.

    Args:
        variables: of :func:`thread_variables`.
        num_cores, num_ranks: as there.
    """
    if not variables:
        return ""
    assigned = " ".join(f"{name}={value}" for name, value in variables.items())
    cores = f"{num_cores} core{'s' if num_cores > 1 else ''}"
    return f"{num_ranks} ranks share {cores}, so each gets {assigned}"
