"""Loaders of batches that read ahead on a thread of their own.

Example:
    >>> class Loader(AsyncDataLoaderMixin, MyLoader): ...
    >>> for batch in Loader(async_loader_queue_size=8, path="..."):
    ...     train(batch)
"""

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
