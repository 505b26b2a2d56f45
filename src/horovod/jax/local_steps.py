"""LocalSGD and DiLoCo: ranks train alone for some steps, then average what they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.compression import refuse_quantizing
from horovod._train.outer_schedule import OuterSchedule, refuse_delay
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.jax.compression import Compression
from horovod.jax.gradients import own_name
from horovod.jax.outer_steps import LocalStepsState, OuterSteps

if TYPE_CHECKING:
    import optax

    from horovod._train.compression import CompressorLike

__all__ = ["DiLoCo", "LocalSGD", "LocalStepsState"]


def LocalSGD(
    tx: optax.GradientTransformation,
    *,
    every: int,
    compression: CompressorLike = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Let each rank step by its own gradients, and average the parameters every few steps.

    Ranks send ``1 / every`` of the bytes of ``DistributedOptimizer``; changes of parameters of half
    precision travel as float32 unless they are compressed. The state of ``tx``, such as its
    momentum, stays that of each rank. From Stich, "Local SGD Converges Fast and Communicates
    Little" (ICLR 2019, arXiv:1805.09767).

    The ranks must begin with equal parameters, and take the same number of steps. It must be the
    outermost transformation: what changes its updates would change the average.

    Args:
        tx: any optimizer of optax. A ``DistributedOptimizer`` over the ranks of each host is
            possible, too: hosts then train alone.
        every: updates from one average to the next.
        compression: how changes travel: Compression.none, fp16, bf16, or your own.
        process_set: the ranks that are averaged.
        name: what the ranks agree on; None numbers the optimizers in the order in which they are
            made.

    Returns:
        An ``optax.GradientTransformationExtraArgs`` whose state is a :class:`LocalStepsState`. Its
        ``update`` needs the parameters. Its ``synchronize(params, state)`` returns both after an
        exchange: call it on all ranks before the model is evaluated or saved. The parameters that
        it returns have the same bits on all ranks; after an update that exchanges, those of
        ``optax.apply_updates`` differ by the rounding of its addition.

    Raises:
        UsageError: the arguments are wrong.
        NotInitializedError: ``hvd.init()`` was not called.
        ImportError: optax is not installed.

    Example:
        >>> tx = hvd.LocalSGD(optax.sgd(0.1), every=8)
    """
    optax = _optax("LocalSGD")
    schedule = OuterSchedule(every)
    refuse_quantizing(compression, "the exchange of LocalSGD and DiLoCo")
    name = name or own_name("LocalSGD", process_set)
    inner = optax.with_extra_args_support(tx)
    return _transformation(OuterSteps(inner, None, schedule, process_set, compression, name), optax)


def DiLoCo(
    tx: optax.GradientTransformation,
    *,
    every: int,
    outer: optax.GradientTransformation | None = None,
    fragments: int = 1,
    delay: int = 0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Let each rank step by its own gradients, and step shared parameters by the average change.

    From Douillard et al., "DiLoCo" (arXiv:2311.08105): the average change is the gradient of an
    outer optimizer. With ``fragments``, parts of the model take turns, as in Streaming DiLoCo
    (Douillard et al., arXiv:2501.18512). For the rest see :func:`LocalSGD`.

    Args:
        tx: any optimizer of optax; the papers use AdamW.
        every: updates from one exchange to the next, of each fragment.
        outer: the outer optimizer, which gets lists of arrays. None is that of the paper, SGD with
            a learning rate of 0.7 and a Nesterov momentum of 0.9.
        fragments: into how many parts of about equal bytes the parameters are divided.
        delay: must be 0: an update ends with its exchange.
        process_set: the ranks that take part.
        name: what the ranks agree on; None numbers the optimizers in the order in which they are
            made.

    Returns:
        The same as :func:`LocalSGD`.

    Raises:
        UsageError: the arguments are wrong.
        NotInitializedError: ``hvd.init()`` was not called.
        ImportError: optax is not installed.

    Example:
        >>> tx = hvd.DiLoCo(optax.adamw(1e-3), every=32)
    """
    optax = _optax("DiLoCo")
    refuse_delay(delay, "JAX")
    schedule = OuterSchedule(every, fragments)
    name = name or own_name("DiLoCo", process_set)
    inner = optax.with_extra_args_support(tx)
    chosen = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    chosen = optax.with_extra_args_support(chosen)
    return _transformation(
        OuterSteps(inner, chosen, schedule, process_set, Compression.none, name), optax
    )


def _optax(function: str) -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"hvd.{function} needs optax: pip install optax", name="optax"
        ) from error
    return optax


def _transformation(steps: OuterSteps, optax: Any) -> Any:
    class LocalSteps(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
        """A transformation that can also bring the ranks together now."""

        synchronize = staticmethod(steps.synchronize)

    return LocalSteps(steps.init, steps.update)
