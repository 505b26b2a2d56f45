"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._rank import context
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.keras_generation import checked_layers
from horovod.tensorflow.reduction_settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import Groups, ReductionOptions
    from horovod.tensorflow.interface_types import Layers, Nested, Variable


class ReducingTape(tf.GradientTape):  # type: ignore[misc]  # TensorFlow has no types
    """The methods that :func:`DistributedGradientTape` adds to the class of the given tape."""

    _reducer: GradientReducer

    @as_written
    def gradient(
        self,
        target: Nested,
        sources: Nested,
        output_gradients: Nested | None = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Computes the gradients of this rank, and reduces them over all.

        Args:
            target: what to differentiate.
            sources: by what: variables or watched tensors, in a list or another structure.
            output_gradients: see ``tf.GradientTape.gradient``.
            use_generic_names: name the operations ``grad_<place>``, for ranks whose graphs or
                variables have different names.
            unconnected_gradients: see ``tf.GradientTape.gradient``.

        Returns:
            The gradients in the structure of ``sources``. Those of local sources are this rank's,
            divided by the number of ranks unless ``scale_local_gradients`` is False.

        Raises:
            UsageError: the process set is not registered, or XLA would have to compile this.
        """
        if tf.executing_eagerly():
            context.count_step()
        plain = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = _leaves(sources, plain)
        reduced = self._reducer.reduce(flat, tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Variable) -> None:
        """Leaves the gradient of a source out of the reduction.

        Args:
            source: a variable or watched tensor, of which each rank has its own.
        """
        self._reducer.register_local(source)

    def get_local_and_global_gradients(
        self,
        target: Nested,
        sources: Sequence[Nested],
        output_gradients: Nested | None = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Like :meth:`gradient`, in two lists of pairs (source, gradient).

        Returns:
            The pairs of local sources, and those of the others.
        """
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        local: list[tuple[Any, Any]] = []
        shared: list[tuple[Any, Any]] = []
        for source, gradient in zip(sources, gradients, strict=True):
            (local if self._reducer.is_local(source) else shared).append((source, gradient))
        return local, shared


@as_written  # AutoGraph would add names of its own to locals()
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> ReducingTape:
    """Makes a tape whose :meth:`~ReducingTape.gradient` is reduced over all ranks.

    Args:
        gradtape: the tape, after it has recorded or before; use the result instead of it.
        device_dense: where dense gradients are reduced; anywhere if empty.
        device_sparse: the same for ``tf.IndexedSlices``.
        compression: how gradients travel: Compression.none, fp16, bf16, your own; or in 8 bits
            between hosts, with error feedback (docs/compression.md): int8, fp8, fp8_e5m2.
        sparse_as_dense: reduce ``tf.IndexedSlices`` as dense tensors.
        op: Average, Sum, Adasum, or another reduction.
        gradient_predivide_factor: divide by this before the sum, and by the rest after it.
        num_groups: deprecated name of ``groups``.
        groups: reduce gradients in groups, each as one operation: a number of groups of
            consecutive ones, or a list of lists of variables (the others go one by one).
        process_set: the ranks that take part; on others gradients stay as they are.
        scale_local_gradients: divide gradients of local sources by the number of ranks.

    Raises:
        UsageError: the arguments are wrong.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(model(images), labels)
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> gradients = tape.gradient(loss, model.trainable_variables)
        >>> optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    """
    return _wrap(**locals())


@as_written  # AutoGraph would add names of its own to locals()
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Layers = None,
    scale_local_gradients: bool = True,
) -> ReducingTape:
    """Like :func:`DistributedGradientTape`, except for some layers of which each rank has its own.

    All other arguments mean what they mean there.

    Args:
        local_layers: a Keras layer or a list of them. Their gradients stay on this rank.
        scale_local_gradients: divide these by the number of ranks, as the average of the others is.

    Raises:
        UsageError: the arguments are wrong.
    """
    options = dict(locals())
    del options["local_layers"]
    tape = _wrap(**options)
    tape._reducer.register_local_layers(checked_layers(local_layers))
    return tape


def _wrap(gradtape: tf.GradientTape, **options: Unpack[ReductionOptions]) -> ReducingTape:
    if isinstance(gradtape, ReducingTape):
        raise UsageError("the tape is a DistributedGradientTape already")
    settings = make_settings("DistributedGradientTape", stacklevel=5, **options)
    plain = type(gradtape)
    wrapped_class = type(plain.__name__, (ReducingTape, plain), {"__doc__": plain.__doc__})
    wrapped: ReducingTape = object.__new__(wrapped_class)
    # What has been recorded, and how to go on, stays with the tape.
    wrapped.__dict__.update(vars(gradtape))
    wrapped._reducer = GradientReducer(settings)
    return wrapped


def _leaves(structure: Any, values: Any) -> list[Any]:
    """The values in the order of ``tf.nest.flatten``, which would take sparse ones apart."""
    if not tf.nest.is_nested(structure):
        return [values]
    keys = sorted(structure) if isinstance(structure, dict) else range(len(structure))
    return [leaf for key in keys for leaf in _leaves(structure[key], values[key])]
