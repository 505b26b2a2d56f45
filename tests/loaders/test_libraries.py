"""Each sample once per epoch with the real libraries, whatever ranks there are."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import datasets
import datasets.distributed
import grain
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import webdataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_story import Case, check_each_once, check_story, play
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBER = 37
IDS = list(range(NUMBER))
ODD = [each for each in IDS if each % 3]
ODD_TEXT = [str(each) for each in ODD]


def is_kept(number: int) -> bool:
    return number % 3 != 0


def ids_of(batch: Any) -> list[Any]:
    """Return the ids of a batch of dictionaries."""
    ids = batch["id"]
    return list(ids.tolist() if hasattr(ids, "tolist") else ids)


def examples(files: list[list[int]]) -> Iterator[dict[str, int]]:
    for file in files:
        for each in file:
            yield {"id": each}


def streamed() -> Any:
    """Return a stream of Hugging Face of 3 shards."""
    files = [IDS[:5], IDS[5:26], IDS[26:]]
    return datasets.IterableDataset.from_generator(examples, gen_kwargs={"files": files})


def filtered() -> Any:
    return streamed().filter(lambda example: is_kept(example["id"]))


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of WebDataset and of Parquet."""
    folder = tmp_path_factory.mktemp("data")
    for number, ids in enumerate([IDS[:4], IDS[4:30], IDS[30:]]):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for each in ids:
                data = json.dumps({"id": each}).encode()
                entry = tarfile.TarInfo(f"{each:04}.json")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        table = pa.table({"id": ids, "x": np.array(ids) / 2})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=7)
    return folder


def tensorflow_case() -> Case:
    tf = pytest.importorskip("tensorflow")

    def make() -> Any:
        return tf.data.Dataset.range(NUMBER).filter(lambda n: n % 3 != 0).map(lambda n: {"id": n})

    return Case(make, ODD, ids_of)


def keras_case() -> Case:
    keras = pytest.importorskip("keras")

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return NUMBER

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return np.full(3, index), np.zeros(3)

    return Case(Batches, IDS, lambda batch: [int(batch[0][0])], has_batches=True)


def web(folder: Path) -> Any:
    files = [str(folder / f"{number}.tar") for number in range(3)]
    data = webdataset.WebDataset(files, shardshuffle=False).decode()
    return data.map(lambda sample: sample["json"]).select(lambda sample: is_kept(sample["id"]))


def grain_loader() -> Any:
    sampler = grain.samplers.IndexSampler(
        NUMBER, shard_options=grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1
    )
    return grain.DataLoader(data_source=IDS, sampler=sampler)


def case_of(kind: str, folder: Path) -> Case:
    """Return the data set of a library."""
    table = pa.table({"id": IDS, "x": [each / 2 for each in IDS]})
    cases = {
        "Hugging Face": lambda: Case(
            lambda: datasets.Dataset.from_dict({"id": IDS}).filter(lambda e: is_kept(e["id"])),
            ODD,
            ids_of,
        ),
        "Hugging Face, streaming": lambda: Case(filtered, ODD, ids_of, has_one_order=False),
        "Hugging Face, shuffled stream": lambda: Case(
            lambda: filtered().shuffle(seed=3, buffer_size=5), ODD, ids_of, has_one_order=False
        ),
        "DataLoader of a stream": lambda: Case(
            lambda: DataLoader(filtered().with_format("torch"), 2),
            ODD,
            ids_of,
            has_one_order=False,
        ),
        "StatefulDataLoader": lambda: Case(lambda: StatefulDataLoader(IDS, 2, shuffle=True), IDS),
        "WebDataset": lambda: Case(lambda: web(folder), ODD, ids_of, has_one_order=False),
        "Grain, MapDataset": lambda: Case(
            lambda: grain.MapDataset.source(IDS).shuffle(seed=1).filter(is_kept),
            ODD,
            has_one_order=False,
        ),
        "Grain, IterDataset": lambda: Case(
            lambda: grain.MapDataset.source(IDS).to_iter_dataset().filter(is_kept), ODD
        ),
        "Grain, DataLoader": lambda: Case(grain_loader, IDS),
        "Parquet": lambda: Case(
            lambda: pyarrow.dataset.dataset(sorted(map(str, folder.glob("*.parquet")))),
            IDS,
            ids_of,
            has_one_order=False,
        ),
        "pyarrow.Table": lambda: Case(lambda: table, IDS, ids_of),
        "tf.data": tensorflow_case,
        "PyDataset": keras_case,
    }
    return cases[kind]()


KINDS = (
    "Hugging Face", "Hugging Face, streaming", "Hugging Face, shuffled stream",
    "DataLoader of a stream", "StatefulDataLoader", "WebDataset", "Grain, MapDataset",
    "Grain, IterDataset", "Grain, DataLoader", "Parquet", "pyarrow.Table", "tf.data", "PyDataset",
)  # fmt: skip


@settings(
    max_examples=4, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*set_vital")  # which torchdata calls
# WebDataset closes no file that is not read to its end.
@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("kind", KINDS)
@given(
    batch_size=st.integers(1, 5),
    shuffle=st.sampled_from([None, True]),
    losses=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=2
    ),
    size=st.integers(1, 6),
)
def test_each_sample_once_per_epoch_whoever_is_lost(
    folder: Path,
    kind: str,
    batch_size: int,
    shuffle: bool | None,
    losses: list[tuple[int, int, int]],
    size: int,
) -> None:
    case = case_of(kind, folder)
    check_story(case, batch_size, shuffle=shuffle, seed=1, losses=losses, size=size)


def test_a_filtered_stream_of_three_shards_on_4_then_3_then_2_ranks(folder: Path) -> None:
    case = case_of("Hugging Face, streaming", folder)
    options = {"batch_size": 2, "shuffle": True, "seed": 3}
    # Jobs that end in the middle of an epoch, one or two steps after their last commit.
    jobs = play(case, options, [(4, 3, 2), (3, 5, 3)], 2)
    check_each_once(case, jobs)
    assert [len(job) for job in jobs] == [4, 3, 2]
    assert all(len(rank.state) < 150 for job in jobs for rank in job)


REFUSED = {
    "split_dataset_by_node": lambda folder: datasets.distributed.split_dataset_by_node(
        streamed(), rank=0, world_size=3
    ),
    "with_epoch": lambda folder: web(folder).with_epoch(5).repeat(2),
    "another order each time": lambda folder: web(folder).shuffle(5),
    "NoSharding": lambda folder: grain.DataLoader(
        data_source=IDS,
        sampler=grain.samplers.IndexSampler(
            NUMBER, shard_options=grain.sharding.ShardOptions(0, 2), num_epochs=1
        ),
    ),
    "num_epochs=1": lambda folder: grain.DataLoader(
        data_source=IDS,
        sampler=grain.samplers.IndexSampler(NUMBER, shard_options=grain.sharding.NoSharding()),
    ),
    r"without repeat\(\)": lambda folder: grain.MapDataset.source(IDS).repeat(),
    "num_workers=2": lambda folder: DataLoader(filtered(), 2, num_workers=2),
    "read once only": lambda folder: iter(filtered()),
    "to_numpy": lambda folder: pa.table({"id": IDS}).to_pandas(),
    "with a loaded state": lambda folder: loaded_stream(),
}


def loaded_stream() -> Any:
    stream = filtered()
    stream.load_state_dict(stream.state_dict())
    return stream


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_honored_is_refused_before_work(folder: Path, message: str) -> None:
    data = REFUSED[message](folder)
    with pytest.raises(UsageError, match=message):
        hvd.shard(data, batch_size=2)


TENSORFLOW_REFUSED = {
    "another order": lambda data: data.shuffle(5, seed=1).batch(2),
    "another order each time": lambda data: data.shuffle(5, reshuffle_each_iteration=False),
    "random numbers": lambda data: data.sample_from_datasets([data, data]),
    "deterministic=False": lambda data: data.map(
        lambda n: n, num_parallel_calls=2, deterministic=False
    ).filter(is_kept),
    "with deterministic": lambda data: data.with_options(unordered()),
}


def unordered() -> Any:
    options = pytest.importorskip("tensorflow").data.Options()
    options.deterministic = False
    return options


@pytest.mark.parametrize("message", TENSORFLOW_REFUSED)
def test_streams_of_tensorflow_need_an_order(message: str) -> None:
    numbers = pytest.importorskip("tensorflow").data.Dataset.range(NUMBER)
    with pytest.raises(UsageError, match=message):
        hvd.shard(TENSORFLOW_REFUSED[message](numbers), batch_size=2)
    ordered = numbers.shuffle(5, seed=1, reshuffle_each_iteration=False)
    ordered = ordered.sample_from_datasets([ordered, numbers], seed=1)
    hvd.shard(ordered.map(lambda n: n, num_parallel_calls=2), batch_size=2)


def test_ranks_whose_streams_are_shuffled_differently_are_told() -> None:
    def body() -> None:
        hvd.init()
        shard = hvd.shard(filtered().shuffle(buffer_size=5), batch_size=2)
        with pytest.raises(UsageError, match="the ranks differ in data"):
            iter(shard)

    run_ranks(2, body)
