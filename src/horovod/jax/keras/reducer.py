"""Reduces the gradients of Keras on JAX, inside and outside of jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.experimental import sparse

from horovod._keras.reducer import Keras3Reducer, key_of
from horovod._train.compression import always_quantizes
from horovod._train.gradients import group_positions
from horovod.jax.error_feedback import reduce_gradients_with_errors
from horovod.jax.gradients import reduce_gradients
from horovod.jax.keras.errors import ErrorVariables

if TYPE_CHECKING:
    from horovod._keras.settings import ReductionSettings
    from horovod._rank.group import Group


class JaxReducer(Keras3Reducer):
    """Sends all gradients of a step as one operation, unless groups are asked for.

    Its weight is a variable of Keras, which multiplies this rank's gradients.

    Args:
        settings: how.

    Attributes:
        errors: what 8 bits round off; None if nothing is, or nobody carries variables along.
    """

    def __init__(self, settings: ReductionSettings) -> None:
        super().__init__(settings)
        quantizes = always_quantizes(settings.compression)
        self.errors: ErrorVariables | None = ErrorVariables() if quantizes else None

    def _is_sparse(self, gradient: Any) -> bool:
        return isinstance(gradient, sparse.JAXSparse)

    def _as_dense(self, gradient: Any) -> Any:
        return gradient.todense()

    def _reduce_shared(
        self, group: Group, gradients: list[Any], variables: list[Any], names: list[str]
    ) -> list[Any]:
        settings = self.settings
        # As a tree whose keys keep the order, and are what messages name.
        if self.weight is not None:
            gradients = [weighed(gradient, self.weight.value) for gradient in gradients]
        keys = [f"{i:06}.{name}" for i, name in enumerate(names)]
        tree = dict(zip(keys, gradients, strict=True))
        together = group_positions(
            settings.groups, list(map(key_of, variables)), (tuple(range(len(gradients))),)
        )
        label_of = {place: label for label, part in enumerate(together) for place in part}
        labels = {key: label_of[i] for i, key in enumerate(keys)}
        options: dict[str, Any] = {
            "op": settings.op,
            "compression": settings.compression,
            "gradient_predivide_factor": settings.predivide_factor,
            "groups": labels,
            "process_set": settings.process_set,
            "name": self._prefix(group),
        }
        by_key = dict(zip(keys, variables, strict=True))
        errors = None if self.errors is None else self.errors.of(by_key)
        if self.errors is None or errors is None:
            reduced = reduce_gradients(tree, **options)
        else:
            reduced, errors = reduce_gradients_with_errors(tree, errors, **options)
            self.errors.keep(by_key, errors)
        return [reduced[key] for key in keys]


def weighed(gradient: Any, weight: Any) -> Any:
    """Return the product; 0 where the weight is 0, even if the gradient is NaN."""
    return jnp.where(weight > 0, gradient * weight, 0).astype(gradient.dtype)
