"""What compression has rounded off gradients, which is added to those of the next step.

The method is that of F. Seide et al., "1-Bit Stochastic Gradient Descent" (2014), and of S. P.
Karimireddy et al., "Error Feedback Fixes SignSGD", https://arxiv.org/abs/1901.09847. The engine
does the sums: after each step the errors that the ranks keep, taken together, are what the result
lacks. Those of gradients that no step has used are dropped with the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod.errors import UsageError
from horovod.torch.tensors import view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._native import Buffer


class ErrorFeedback:
    """The errors that this rank keeps, for each parameter in float32.

    They belong to this rank: together those of all ranks are the error of the job, so that one rank
    must never get those of another one.
    """

    key = "error_feedback"

    def __init__(self) -> None:
        self._residuals: dict[str, torch.Tensor] = {}
        self._unused: set[str] = set()  # of gradients that no step has used yet

    def of(
        self, names: Sequence[str], wires: Sequence[torch.Tensor]
    ) -> tuple[list[Buffer], list[torch.Tensor]]:
        """Return the errors of some parameters for the engine, and the memory to keep alive.

        Args:
            names: of the parameters.
            wires: their gradients, as they are sent.
        """
        kept = [self._of(name, wire) for name, wire in zip(names, wires, strict=True)]
        return [view(residual) for residual in kept], kept

    def _of(self, name: str, wire: torch.Tensor) -> torch.Tensor:
        num_values = wire.numel() * (2 if wire.is_complex() else 1)
        known = self._residuals.get(name)
        if known is None:
            known = self._residuals[name] = torch.zeros(
                num_values, dtype=torch.float32, device="cpu"
            )
        elif known.numel() != num_values:
            raise UsageError(
                f"the error feedback of {name} has {known.numel()} values, but its gradient has "
                f"{num_values}: it is that of another model"
            )
        elif name in self._unused:
            known.zero_()
        self._unused.add(name)
        return known

    def keep(self) -> None:
        """Keep the errors of the gradients that have left, as a step has used these."""
        self._unused.clear()

    def state_dict(self, rank: int) -> dict[str, Any]:
        """Return the errors as a state that says whose it is; its tensors are the live ones.

        Args:
            rank: this rank.
        """
        return {"rank": rank, "residuals": dict(self._residuals)}

    def load_state_dict(self, state: Mapping[str, Any] | None, rank: int) -> None:
        """Take the errors that this rank has saved; begin at zero with the state of another rank.

        Args:
            state: what :meth:`state_dict` returned, or None.
            rank: this rank.
        """
        self._residuals.clear()
        self._unused.clear()
        if state is None or state["rank"] != rank:
            return
        for name, saved in state["residuals"].items():
            self._residuals[name] = saved.detach().to("cpu", torch.float32, copy=True).reshape(-1)
