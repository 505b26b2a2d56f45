"""SyncBatchNorm, with ranks as threads: what BatchNorm does with the batches of all ranks."""

from __future__ import annotations

import copy
import io
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from thread_ranks import Sent, ThreadRanks, run_ranks
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from horovod._rank.context import inherited
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F32, F64 = torch.float32, torch.float64


@dataclass(frozen=True)
class Case:
    """What goes through a layer.

    Attributes:
        rows: of each rank's batch.
        extents: of the dimensions behind the channels.
        options: of the layer.
    """

    rows: Sequence[int] = (3, 2)
    extents: Sequence[int] = (4, 5)
    dtype: torch.dtype = F64
    options: tuple[tuple[str, Any], ...] = ()
    memory_format: torch.memory_format = torch.contiguous_format
    mean: float = 3.0

    @property
    def parameter_dtype(self) -> torch.dtype:
        return self.dtype if self.dtype in (F32, F64) else F32

    def data(self, seed: int, mean: float = 0.0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(sum(self.rows), 3, *self.extents, generator=generator, dtype=F64)
        values = values * torch.tensor([0.5, 1.0, 4.0]).view(3, *[1] * len(self.extents))
        return (values + mean).to(self.dtype).contiguous(memory_format=self.memory_format)

    def layer(self, make: Callable[..., torch.nn.Module]) -> torch.nn.Module:
        layer = make(3, dtype=self.parameter_dtype, **dict(self.options))
        for index, param in enumerate(layer.parameters()):
            torch.nn.init.uniform_(param, 0.5 + index, 1.5, generator=torch.Generator())
        return layer

    def pass_through(self, layer: torch.nn.Module, part: slice) -> dict[str, torch.Tensor]:
        """Two batches forwards and backwards; the second has the results."""
        for seed in (0, 2):
            layer.zero_grad()
            x = self.data(seed, self.mean)[part].requires_grad_(True)
            y = layer(x)
            y.backward(self.data(seed + 1)[part])
        assert x.grad is not None
        assert y.dtype == x.dtype
        if x.numel():
            assert y.is_contiguous(memory_format=self.memory_format)
        results = {"output": y.detach(), "gradient": x.grad}
        results |= {f"{name}.grad": p.grad for name, p in layer.named_parameters()}
        return results | {name: value.clone() for name, value in layer.named_buffers()}


BATCH_NORMS = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d}
BATCH_NORMS[3] = torch.nn.BatchNorm3d

CASES = {
    "plain": Case(),
    "float32": Case(dtype=F32),
    "two_dimensions": Case(rows=(3, 4), extents=()),
    "three_dimensions": Case(extents=(6,)),
    "five_dimensions": Case(extents=(2, 3, 2)),
    "three_ranks": Case(rows=(1, 5, 2)),
    "empty_on_one": Case(rows=(4, 0)),
    "one_value_each": Case(rows=(1, 1), extents=()),
    "cumulative": Case(options=(("momentum", None),)),
    "no_weights": Case(options=(("affine", False),)),
    "no_running_statistics": Case(options=(("track_running_stats", False),)),
    "channels_last": Case(memory_format=torch.channels_last),
    "float16": Case(dtype=torch.float16),
    "bfloat16": Case(dtype=torch.bfloat16),
    "mean_far_from_zero": Case(mean=1e5),
}

TOLERANCES = {F64: 1e-12, F32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("name", CASES)
def test_it_is_batch_norm_of_all_batches(name: str) -> None:
    case = CASES[name]
    whole = case.pass_through(case.layer(BATCH_NORMS[len(case.extents)]), slice(None))
    starts = [sum(case.rows[:rank]) for rank in range(len(case.rows))]
    parts = [slice(a, a + n) for a, n in zip(starts, case.rows, strict=True)]
    everyones = run_ranks(
        len(parts), lambda rank: case.pass_through(case.layer(hvd.SyncBatchNorm), parts[rank])
    )
    for key, expected in whole.items():
        mine = [results[key] for results in everyones]
        if key in ("output", "gradient"):
            got = torch.cat(mine)
        elif key.endswith(".grad"):
            got = torch.stack(mine).sum(dim=0)
        else:
            assert all(torch.equal(buffer, mine[0]) for buffer in mine)
            got = mine[0]
        # Digits of the mean are lost in the input already, before any layer sees it.
        tolerance = TOLERANCES[case.dtype] * (1.0 if case.mean < 10 else 1e4)
        largest = max(1.0, float(expected.abs().max()))
        off = float((got - expected).abs().max())
        assert off <= tolerance * largest, f"{key} is off by {off} of {largest}"


def test_evaluation_uses_running_statistics_and_sends_nothing() -> None:
    def body(rank: int) -> None:
        layer = hvd.SyncBatchNorm(3)
        layer(torch.randn(4, 3))
        layer.eval()
        if rank == 0:
            layer(torch.randn(1, 3))

    run_ranks(2, body)
    # Nor does it need a job.
    hvd.SyncBatchNorm(3).eval()(torch.randn(2, 3))


def test_evaluation_without_running_statistics_normalizes_all_batches() -> None:
    def body(rank: int) -> torch.Tensor:
        layer = hvd.SyncBatchNorm(1, track_running_stats=False).eval()
        output: torch.Tensor = layer(torch.tensor([[float(rank)]]))
        return output.detach()

    low, high = run_ranks(2, body)
    assert low == pytest.approx(-1.0, abs=1e-4)
    assert high == pytest.approx(1.0, abs=1e-4)


def test_one_rank_is_plain_batch_norm() -> None:
    def body(_: int) -> None:
        case = Case()
        mine = case.pass_through(case.layer(hvd.SyncBatchNorm), slice(None))
        plain = case.pass_through(case.layer(torch.nn.BatchNorm2d), slice(None))
        assert all(torch.equal(mine[key], plain[key]) for key in plain)

    run_ranks(1, body)


def test_wrong_inputs_are_refused() -> None:
    def body(_: int) -> None:
        layer = hvd.SyncBatchNorm(3)
        for shape in ((3,), (2, 4), (2, 4, 3)):
            with pytest.raises(UsageError, match=r"SyncBatchNorm\(3\) got an input of shape"):
                layer(torch.ones(shape))
        with pytest.raises(UsageError, match="1 values per channel"):
            layer(torch.ones(1 - hvd.global_process_set.rank(), 3))
        with pytest.raises(UsageError, match="0 values per channel"):
            layer(torch.ones(0, 3))

    run_ranks(2, body)


def test_different_layers_are_an_error_on_all_ranks() -> None:
    def body(rank: int) -> None:
        layer = hvd.SyncBatchNorm(3 + rank)
        with pytest.raises(hvd.HorovodInternalError, match="sync_batch_norm"):
            layer(torch.ones(2, 3 + rank))

    run_ranks(2, body)


def test_a_pass_sends_two_messages() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            layer = hvd.SyncBatchNorm(3)
            sent = Sent(ranks.groups[rank])
            layer(torch.randn(2, 3, requires_grad=True)).sum().backward()
            assert [name.split(".")[0] for name in sent.take()] == ["allgather", "allreduce"]
            # The input of a first layer needs no gradient.
            layer(torch.randn(2, 3)).sum().backward()
            assert [name.split(".")[0] for name in sent.take()] == ["allgather"]

        ranks.run(body)


def test_layers_of_several_threads_do_not_disturb_each_other() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> list[torch.Tensor]:
            layers = [hvd.SyncBatchNorm(1, dtype=F64) for _ in range(2)]
            outputs: dict[int, torch.Tensor] = {}
            order = [rank, 1 - rank]
            started = threading.Barrier(2)

            def use(index: int) -> None:
                started.wait(10)
                for _ in range(20):
                    batch = torch.tensor([[float(rank * (index + 1))]], dtype=F64)
                    outputs[index] = layers[index](batch)

            threads = [threading.Thread(target=inherited(use), args=(i,)) for i in order]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            return [layers[index].running_mean for index in range(2)]

        first, second = ranks.run(body)
    assert first == second
    assert float(first[1]) == pytest.approx(2 * float(first[0]))


def test_models_are_converted() -> None:
    def body(rank: int) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 3),
            torch.nn.BatchNorm1d(3, eps=0.1, momentum=None),
            torch.nn.Sequential(torch.nn.BatchNorm2d(2, affine=False), torch.nn.ReLU()),
            torch.nn.InstanceNorm1d(3),
        )
        model[2].eval()
        before = dict(model.state_dict(keep_vars=True))
        converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        assert converted is model
        assert all(
            before[name] is value for name, value in model.state_dict(keep_vars=True).items()
        )
        first, second = model[1], model[2][0]
        assert type(first) is type(second) is hvd.SyncBatchNorm
        assert (first.eps, first.momentum, first.training) == (0.1, None, True)
        assert (second.affine, second.training) == (False, False)
        assert type(model[3]) is torch.nn.InstanceNorm1d
        alone = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(2))
        assert type(alone) is hvd.SyncBatchNorm
        assert alone.process_set is hvd.global_process_set
        with pytest.raises(UsageError, match="lazy"):
            hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())

    run_ranks(2, body)


def test_copies_and_files() -> None:
    def body(rank: int) -> None:
        layer = hvd.SyncBatchNorm(3, dtype=F64)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        layers = [layer, copy.deepcopy(layer), torch.load(file, weights_only=False)]
        # Each is a layer of its own.
        assert [each._layer_name.text for each in layers] == [
            f"sync_batch_norm.{i}" for i in (1, 2, 3)
        ]
        batch = torch.full((1, 3), float(rank), dtype=F64)
        for each in layers:
            assert torch.equal(each(batch), layer(batch))

    run_ranks(2, body)


def test_layers_made_before_init_have_names_of_their_own() -> None:
    early = [hvd.SyncBatchNorm(3) for _ in range(2)]

    def body(_: int) -> None:
        late = hvd.SyncBatchNorm(3)
        names = {layer._layer_name for layer in (*early, late)}
        assert len(names) == 3
        assert late._layer_name.text == "sync_batch_norm.1"

    run_ranks(2, body)


def test_a_checkpointed_layer() -> None:
    def body(rank: int) -> list[torch.Tensor]:
        layer = hvd.SyncBatchNorm(3, dtype=F64)
        x = Case().data(rank)[:2].requires_grad_(True)
        checkpoint(layer, x, use_reentrant=False).square().sum().backward()
        plain = x.grad.clone()
        x.grad = None
        layer(x).square().sum().backward()
        torch.testing.assert_close(x.grad, plain, rtol=1e-12, atol=1e-12)
        return []

    run_ranks(2, body)


def test_layers_of_process_sets() -> None:
    def body(rank: int) -> None:
        pair = hvd.add_process_set([0, 2])
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(1, affine=False, dtype=F64))
        hvd.SyncBatchNorm.convert_sync_batchnorm(model, pair)
        batch = torch.tensor([[float(rank)], [1.0]], dtype=F64)
        # Rank 1 is outside of the set, and normalizes by itself.
        expected = {0: [-1.0, 0.0], 1: [0.0, 0.0], 2: [1.0, 0.0]}
        for each in (model, copy.deepcopy(model)):
            output = each(batch) * (0.5**0.5)
            assert output.flatten().tolist() == pytest.approx(expected[rank], abs=1e-4)
        assert isinstance(model[0].process_set, hvd.ProcessSet)

    run_ranks(3, body)
