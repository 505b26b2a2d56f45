"""Checkpoints of which each rank writes and reads its part; ranks are threads."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import horovod.torch as hvd
from horovod._train import share_files
from horovod.errors import HorovodInternalError, MismatchError, UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

F64 = torch.float64


def model_of() -> torch.nn.Sequential:
    conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    model = torch.nn.Sequential(conv, torch.nn.Flatten(), torch.nn.Linear(12, 17)).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=F64))
    return model


def optimizer_of(model: torch.nn.Module, lr: float = 0.01) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.8, 0.9)),
        model.named_parameters(),
        shard_state=True,
    )


def take_step(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2, 3, 3, dtype=F64)).square().sum().backward()
    optimizer.step()


def save(folder: Path, steps: int = 2) -> Any:
    """Train and save; the step after the call must not be in the files."""
    hvd.init()
    model = model_of()
    optimizer = optimizer_of(model, 0.5)
    for _ in range(steps):
        take_step(model, optimizer)
    state = optimizer.state_dict()
    pending = optimizer.save_shares(folder)
    take_step(model, optimizer)
    pending.wait()
    assert pending.done()
    return state


def load(folder: Path) -> Any:
    hvd.init()
    model = model_of()
    optimizer = optimizer_of(model)
    optimizer.load_shares(folder)
    assert optimizer.param_groups[0]["lr"] == 0.5
    state = optimizer.state_dict()
    take_step(model, optimizer)
    return state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_any_number_of_ranks_loads_what_three_have_saved(tmp_path: Path) -> None:
    (wanted, *_) = run_ranks(3, save, tmp_path / "new" / "folder")
    assert len(names(tmp_path / "new" / "folder")) == 4
    for num_ranks in (1, 2, 3, 4):
        for state in run_ranks(num_ranks, load, tmp_path / "new" / "folder"):
            assert state["param_groups"] == wanted["param_groups"]
            torch.testing.assert_close(state["state"], wanted["state"], rtol=0, atol=0)


def test_a_new_checkpoint_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    run_ranks(3, save, tmp_path)
    before = names(tmp_path)
    run_ranks(2, save, tmp_path, 4)
    assert len(names(tmp_path)) == 3
    assert not set(before) & set(names(tmp_path)) - {share_files.MANIFEST}
    assert run_ranks(1, load, tmp_path)[0]["state"][0]["step"] == 4


def test_a_save_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ranks(2, save, tmp_path)
    before = names(tmp_path)
    write_part = share_files.write_part

    def fail(folder: Path, name: str, *rest: Any) -> share_files.Part:
        if name.endswith("-1-of-3"):
            raise OSError("no space left on device")
        return write_part(folder, name, *rest)

    def body() -> None:
        with pytest.raises(UsageError, match=r"rank 1: OSError: no space left"):
            save(tmp_path, 5)

    monkeypatch.setattr(share_files, "write_part", fail)
    run_ranks(3, body)
    assert names(tmp_path) == before
    assert run_ranks(2, load, tmp_path)[0]["state"][0]["step"] == 2


def test_a_rank_that_is_lost_during_a_save_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ranks(2, save, tmp_path)
    before = names(tmp_path)
    write_part = share_files.write_part

    is_lost = threading.Event()

    def lose(folder: Path, name: str, *rest: Any) -> share_files.Part:
        if name.endswith("-1-of-3"):
            assert is_lost.wait(30.0)
        return write_part(folder, name, *rest)

    def body() -> None:
        hvd.init()
        model = model_of()
        optimizer = optimizer_of(model)
        take_step(model, optimizer)
        pending = optimizer.save_shares(tmp_path)
        if hvd.rank() == 1:
            hvd.shutdown()
            is_lost.set()
        with pytest.raises((HorovodInternalError, UsageError)):
            pending.wait()

    monkeypatch.setattr(share_files, "write_part", lose)
    run_ranks(3, body)
    assert names(tmp_path) == before


def test_two_optimizers_that_save_at_once_have_a_checkpoint_each(tmp_path: Path) -> None:
    def body() -> None:
        hvd.init()
        models = model_of(), model_of()
        optimizers = [optimizer_of(model, 0.5) for model in models]
        saves = []
        for number in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                take_step(model, optimizer)
                saves.append(optimizer.save_shares(tmp_path / str(number % 2)))
        for each in saves:
            each.wait()

    run_ranks(2, body)
    for folder, step in (("0", 3), ("1", 2)):
        assert len(names(tmp_path / folder)) in (3, 5)  # both made a checkpoint in this folder
        assert run_ranks(2, load, tmp_path / folder)[0]["state"][0]["step"] == step


def damage(folder: Path, how: str) -> None:
    part = next(path for path in folder.iterdir() if path.name.endswith("-1-of-2"))
    manifest = folder / share_files.MANIFEST
    if how == "changed":
        data = bytearray(part.read_bytes())
        data[-20] ^= 1
        part.write_bytes(data)
    elif how == "cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif how == "gone":
        part.unlink()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "version":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 9}))
    elif how == "outside":
        manifest.write_text(manifest.read_text().replace('"shares-', '"../shares-'))
    else:
        manifest.write_text(how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("changed", "checksum is wrong"),
        ("cut", "bytes instead of"),
        ("gone", "cannot be read"),
        ("no manifest", "there are no shares"),
        ("version", "of version 9, not of 1"),
        ("outside", "a part outside of its folder"),
        ("{}", "is no manifest of shares"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_on_all_ranks(
    tmp_path: Path, how: str, message: str
) -> None:
    run_ranks(2, save, tmp_path)
    damage(tmp_path, how)

    def body() -> None:
        with pytest.raises((UsageError, MismatchError), match=message):
            load(tmp_path)

    run_ranks(3, body)


def test_shares_of_other_parameters_are_refused(tmp_path: Path) -> None:
    run_ranks(2, save, tmp_path)

    def body(model: torch.nn.Module) -> None:
        hvd.init()
        optimizer = optimizer_of(model)
        with pytest.raises(MismatchError, match=f"the shares in {tmp_path} "):
            optimizer.load_shares(tmp_path)

    run_ranks(1, body, torch.nn.Linear(2, 2))
    run_ranks(1, body, model_of().to(memory_format=torch.contiguous_format))


def test_options_of_groups_of_other_sizes_are_refused(tmp_path: Path) -> None:
    def body(sizes: tuple[int, int]) -> Any:
        hvd.init()
        params = [torch.nn.Parameter(torch.ones(3, dtype=F64)) for _ in range(3)]
        groups = [{"params": params[: sizes[0]], "lr": 0.5}, {"params": params[sizes[0] :]}]
        plain = torch.optim.AdamW(groups)
        named = {f"p{index}": param for index, param in enumerate(params)}
        return hvd.DistributedOptimizer(plain, named.items(), shard_state=True)

    run_ranks(2, lambda: body((2, 1)).save_shares(tmp_path).wait())
    with pytest.raises(MismatchError, match=r"groups of \[2, 1\] parameters"):
        run_ranks(2, lambda: body((1, 2)).load_shares(tmp_path))


def test_options_that_are_no_data_are_refused(tmp_path: Path) -> None:
    def body() -> None:
        hvd.init()
        model = model_of()
        optimizer = optimizer_of(model)
        optimizer.param_groups[0]["rule"] = body
        pending = optimizer.save_shares(tmp_path)
        with pytest.raises(UsageError, match="which files do not hold"):
            pending.wait()

    run_ranks(2, body)
    assert names(tmp_path) == []
