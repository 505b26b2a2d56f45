"""LocalSGD and DiLoCo as scripts call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.compiling import prepare_compile
from horovod._keras.copying import prepare_copies
from horovod._keras.local_steps.backend import LocalStepsSettings
from horovod._keras.reducing_optimizer import (
    ReducingOptimizer,
    Wrapping,
    share_state,
    wrapped_class,
)
from horovod._keras.seam import seam_of
from horovod._keras.which import generation_of, keras_of, kind_of
from horovod._train.call_site import call_site
from horovod._train.compression import NoneCompressor, refuse_quantizing
from horovod._train.outer_schedule import OuterSchedule, refuse_delay
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from typing import NoReturn

    from horovod._train.compression import CompressorLike


def LocalSGD(
    optimizer: Any,
    *,
    every: int,
    compression: CompressorLike = NoneCompressor,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Let each rank step by its own gradients, and average the variables every few steps.

    Ranks send ``1 / every`` of the bytes of ``DistributedOptimizer``; changes of variables of half
    precision travel as float32 unless they are compressed. The state of the optimizer, such as its
    momentum, stays that of each rank. From Stich, "Local SGD Converges Fast and Communicates
    Little" (ICLR 2019, arXiv:1805.09767).

    The ranks must begin with equal variables, and take the same number of steps. Give ``model.fit``
    ``hvd.callbacks.LocalStepsCallback()``, or call ``optimizer.synchronize()`` on all ranks before
    the model is evaluated or saved.

    Args:
        optimizer: any plain optimizer of Keras 3 but LossScaleOptimizer.
        every: calls of ``apply`` from one average to the next.
        compression: how changes travel: Compression.none, fp16, bf16, or your own.
        process_set: the ranks that are averaged.
        name: what the operations are called after; ``LocalSGD<class>`` if None.

    Returns:
        An instance of the same class, which shares all state with ``optimizer``; use it instead.

    Raises:
        UsageError: the optimizer or an argument is wrong.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> optimizer = hvd.LocalSGD(keras.optimizers.SGD(0.1), every=8)
    """
    schedule = OuterSchedule(every)
    refuse_quantizing(compression, "the exchange of LocalSGD and DiLoCo")
    settings = LocalStepsSettings(
        name or f"LocalSGD{type(optimizer).__name__}", schedule, None, compression, process_set,
        call_site(),
    )  # fmt: skip
    return _wrap(optimizer, settings, "LocalSGD")


def DiLoCo(
    optimizer: Any,
    *,
    every: int,
    outer: Any = None,
    fragments: int = 1,
    delay: int = 0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Let each rank step by its own gradients, and step shared variables by the average change.

    From Douillard et al., "DiLoCo" (arXiv:2311.08105): the average change is the gradient of an
    outer optimizer. With ``fragments``, parts of the model take turns, as in Streaming DiLoCo
    (Douillard et al., arXiv:2501.18512). For the rest see :func:`LocalSGD`.

    Args:
        optimizer: any plain optimizer of Keras 3 but LossScaleOptimizer; the papers use AdamW.
        every: calls of ``apply`` from one exchange to the next, of each fragment.
        outer: an optimizer of Keras without state, whose configuration the outer one gets. None is
            that of the paper, SGD with a learning rate of 0.7 and a Nesterov momentum of 0.9.
        fragments: into how many parts of about equal bytes the variables are divided.
        delay: must be 0: a step ends with its exchange.
        process_set: the ranks that take part.
        name: what the operations are called after; ``DiLoCo<class>`` if None.

    Returns:
        An instance of the same class, which shares all state with ``optimizer``; use it instead.
        Its ``outer_optimizer`` is the outer one.

    Raises:
        UsageError: the optimizer or an argument is wrong.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> optimizer = hvd.DiLoCo(keras.optimizers.AdamW(), every=32)
    """
    refuse_delay(delay, "Keras")
    schedule = OuterSchedule(every, fragments)
    keras = _check_optimizer(optimizer, "DiLoCo")
    if outer is None:
        outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    elif keras_of(type(outer)) is not keras or not hasattr(outer, "apply") or outer.built:
        raise UsageError(
            f"outer={outer!r} must be a new optimizer of Keras, without state, such as "
            "keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)"
        )
    settings = LocalStepsSettings(
        name or f"DiLoCo{type(optimizer).__name__}", schedule, outer, NoneCompressor, process_set,
        call_site(),
    )  # fmt: skip
    return _wrap(optimizer, settings, "DiLoCo")


def _wrap(optimizer: Any, settings: LocalStepsSettings, kind: str) -> Any:
    keras = _check_optimizer(optimizer, kind)
    group_of(settings.process_set)  # fails here before hvd.init(), and not at the first step
    added, begin = seam_of(keras).local_steps()
    wrapping = Wrapping(settings, begin, _refuse_copy, kind=kind)
    wrapped = share_state(optimizer, wrapped_class(added, type(optimizer), wrapping))
    wrapped._begin()
    prepare_compile(keras)
    prepare_copies(keras)
    return wrapped


def _check_optimizer(optimizer: Any, kind: str) -> Any:
    """Return the Keras of an optimizer.

    Raises:
        UsageError: it is none of Keras 3, is wrapped already, or does what only one rank sees.
    """
    keras = keras_of(type(optimizer))
    if keras is None or not hasattr(optimizer, "apply_gradients"):
        raise UsageError(f"hvd.{kind}: {kind_of(optimizer)} is no optimizer of Keras")
    if isinstance(optimizer, ReducingOptimizer):
        raise UsageError(
            f"hvd.{kind} takes a plain optimizer of Keras, but this is a {optimizer.wrapping.kind}"
        )
    if generation_of(keras) < 3:
        raise UsageError(
            f"hvd.{kind} needs Keras 3, but {kind_of(optimizer)} is of Keras {keras.__version__}"
        )
    if hasattr(optimizer, "inner_optimizer"):
        from horovod._keras.local_steps.optimizer import SCALER_REFUSAL

        raise UsageError(SCALER_REFUSAL)
    if getattr(optimizer, "use_ema", False):
        raise UsageError(
            f"hvd.{kind}: use_ema=True would replace the variables by the moving average of each "
            "rank; leave it out"
        )
    return keras


def _refuse_copy(optimizer: Any) -> NoReturn:
    kind = optimizer.wrapping.kind
    raise UsageError(
        f"an optimizer of hvd.{kind} cannot be copied or pickled, as its outer variables belong to "
        f"the variables of a model; save the model, and wrap the loaded optimizer by hvd.{kind}"
    )
