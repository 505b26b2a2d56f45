"""Honor a ``DataLoader``'s settings when ranks divide its samples, or refuse them.

Nothing is imported: a program that has a ``DataLoader`` has loaded PyTorch.
"""

from __future__ import annotations

import copy
import operator
import random
import sys
import threading
from array import array
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Their order comes from their generator and nothing else.
_DRAW_FROM_GENERATOR = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
# They divide samples among ranks themselves.
_DIVIDING = ("DistributedSampler", "ElasticSampler")
_SAMPLERS_OF_TORCHDATA = "torchdata.stateful_dataloader.sampler"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_HONORED = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator",
    "multiprocessing_context", "prefetch_factor", "pin_memory_device",
)  # fmt: skip

# Ranks that are threads of one process share what numbers are drawn from.
drawing = threading.Lock()


def _torch_data() -> Any:
    return sys.modules["torch.utils.data"]


def check_loader(loader: Any, caller: str = "batches()") -> None:
    """Refuse what cannot be honored.

    Args:
        loader: a ``DataLoader``, or a ``StatefulDataLoader`` of torchdata, whose position is not
            used.
        caller: what the error begins with.

    Raises:
        UsageError: the loader makes batches of its own, divides samples itself, or hands out
            batches in another order.
    """

    def refuse(what: str) -> None:
        raise UsageError(f"{caller} of a {type(loader).__name__} {what}")

    is_stateful = type(loader).__module__ == _STATEFUL
    if not is_stateful and type(loader).__iter__ is not _torch_data().DataLoader.__iter__:
        refuse("with an __iter__ of its own, which would not be called: give its data set")
    if loader.batch_size is None:
        which = "batch_size=None" if loader.batch_sampler is None else "a batch_sampler"
        refuse(f"with {which}: ranks divide samples, not batches; give its data set and batch_size")
    if is_stateful and loader.next_iter_state is not None:
        refuse("with a loaded state, which says what one rank has read: load that of the shard")
    if any(each.__name__ in _DIVIDING for each in type(loader.sampler).__mro__):
        refuse(
            f"with a {type(loader.sampler).__name__}, which divides the samples among the ranks: "
            "this does so, leave the sampler out"
        )
    if not getattr(loader, "in_order", True):
        refuse("with in_order=False: samples are counted by their order, leave it out")


def options_of(loader: Any) -> dict[str, Any]:
    """Return the options of a loader that do not affect the order of samples."""
    return {name: getattr(loader, name) for name in _HONORED}


def pinning(loader: Any) -> Callable[[list[Any]], Any]:
    """Return the ``collate_fn`` of a loader, with batches in pinned memory as the loader says."""
    options: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "pin_memory": True,
        "pin_memory_device": loader.pin_memory_device,
    }

    def collate(samples: list[Any]) -> Any:
        data: Any = [samples]
        return next(iter(_torch_data().DataLoader(data, batch_size=None, **options)))

    return collate


def has_plain_order(loader: Any) -> bool:
    """Return whether the sampler is that of ``shuffle=True`` or ``shuffle=False``."""
    sampler: Any = loader.sampler
    data: Any = loader.dataset
    torch_data = _torch_data()
    if isinstance(data, torch_data.IterableDataset):
        return True
    kind = type(sampler)
    if getattr(sampler, "data_source", None) is not data:
        return False
    if kind is torch_data.SequentialSampler:
        return True
    # That of torchdata draws a seed for a generator of its own if the program gives none.
    is_of_torchdata = kind.__module__ == _SAMPLERS_OF_TORCHDATA and kind.__name__ == "RandomSampler"
    if kind is not torch_data.RandomSampler and not is_of_torchdata:
        return False
    generator = loader.generator if is_of_torchdata else sampler.generator
    return (
        not sampler.replacement and generator is None and sampler.num_samples == len(loader.dataset)
    )


def length_of_sampler(loader: Any) -> int:
    """Return how many indices the sampler of a loader says that it yields.

    Raises:
        UsageError: it does not say so.
    """
    try:
        return len(loader.sampler)
    except TypeError:
        name = type(loader.sampler).__name__
        raise UsageError(f"a DataLoader with a {name}: the sampler needs a length") from None


def order_of_sampler(loader: Any, seed: int, epoch: int) -> Sequence[Any]:
    """Return the indices of a sampler for an epoch, the same on all ranks and whenever it is asked.

    What it draws comes from numbers that follow from the epoch, and from the seed of its generator
    or, if it has none, from ``seed``. Its ``set_epoch(epoch)`` is called if it has one.

    Raises:
        UsageError: the sampler has no length, or yields more indices than that.
    """
    sampler: Any = loader.sampler
    name = type(sampler).__name__
    if callable(set_epoch := getattr(sampler, "set_epoch", None)):
        set_epoch(epoch)
    length = length_of_sampler(loader)
    with _drawn_from(sampler, seed, epoch) as seeded:
        drawn = list(islice(seeded, length + 1))
    if len(drawn) > length:
        raise UsageError(
            f"a DataLoader with a {name}: the sampler yields more indices than its length says, "
            f"which is {length}"
        )
    try:
        return array("q", map(operator.index, drawn))
    except (TypeError, OverflowError):  # keys of a data set that is a dictionary
        return drawn


@contextmanager
def _drawn_from(sampler: Any, seed: int, epoch: int) -> Iterator[Any]:
    """Return the sampler, with random numbers that follow from the seed and the epoch."""
    own_generator = getattr(sampler, "generator", None)
    torch = sys.modules["torch"]
    generator = own_generator if isinstance(own_generator, torch.Generator) else None
    number = ((seed if generator is None else generator.initial_seed()) + epoch) % (1 << 63)
    kind = type(sampler)
    if kind.__module__ == "torch.utils.data.sampler" and kind.__name__ in _DRAW_FROM_GENERATOR:
        own = copy.copy(sampler)
        own.generator = torch.Generator()
        own.generator.manual_seed(number)
        yield own
        return
    with drawing:
        restore = [_seeded_torch(number), _seeded_python(number), _seeded_numpy(number)]
        if generator is not None:
            restore.append(_reseeded(generator, number))
        try:
            yield sampler
        finally:
            for each in restore:
                each()


def _reseeded(generator: Any, number: int) -> Callable[[], object]:
    before = generator.get_state()
    generator.manual_seed(number)
    return lambda: generator.set_state(before)


def _seeded_torch(number: int) -> Callable[[], object]:
    return _reseeded(sys.modules["torch"].default_generator, number)


def _seeded_python(number: int) -> Callable[[], object]:
    before = random.getstate()
    random.seed(number)
    return lambda: random.setstate(before)


def _seeded_numpy(number: int) -> Callable[[], object]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return lambda: None
    before = numpy.random.get_state()
    numpy.random.seed(number % (1 << 32))
    return lambda: numpy.random.set_state(before)
