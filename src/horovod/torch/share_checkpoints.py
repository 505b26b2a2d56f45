"""Checkpoints of optimizers with shard_state=True, of which each rank writes and reads its part."""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._train import objects, share_files
from horovod._train.call_site import call_site
from horovod._train.share_files import Manifest, Part
from horovod._train.shares import Piece
from horovod.errors import HorovodInternalError, UsageError
from horovod.torch.elastic import checkpoint_tensors as checkpoint_tensors  # files can hold tensors
from horovod.torch.parameter_shares import options_of
from horovod.torch.share_states import PieceState

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import torch

    from horovod._rank.group import Group
    from horovod.torch.parameter_shares import ParameterShares
    from horovod.torch.sharded_optimizer import ShardedOptimizer

_logger = logging.getLogger("horovod")


class PendingSave:
    """A checkpoint that is being written, by a thread of this rank.

    Args:
        group: the ranks that write.
        folder: of the checkpoint.
        name: of this rank's part.
        call: the name on which the ranks agree, and ``file:line`` of the caller.
    """

    def __init__(self, group: Group, folder: Path, name: str, call: tuple[str, str]) -> None:
        self._group = group
        self._folder = folder
        self._name = name
        self._call = call
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="horovod shares")
        self._states: Sequence[PieceState] = ()
        self._options: Sequence[dict[str, Any]] = ()
        self._parameters: tuple[tuple[str, str], ...] = ()

    def start(
        self,
        states: Sequence[PieceState],
        options: Sequence[dict[str, Any]],
        parameters: tuple[tuple[str, str], ...],
    ) -> None:
        """Begin to write what nobody changes any more."""
        self._states, self._options, self._parameters = states, options, parameters
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint is whole, on all ranks.

        Raises:
            UsageError: a rank could not write its part; the checkpoint before stays.
            HorovodInternalError: the job failed; the checkpoint before stays, unless all parts had
                been written.
        """
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # for the caller of wait()
            _logger.warning("the shares were not saved in %s: %s", self._folder, error)
            self._failure = error
        finally:
            self._states = ()

    def _write(self) -> None:
        part: Part | None = None
        problem = ""
        values = {
            "elements": [each.elements for each in self._states],
            "others": [each.others for each in self._states],
            "options": list(self._options),
        }
        try:
            pieces = [each.piece for each in self._states]
            part = share_files.write_part(self._folder, self._name, pieces, values)
        except Exception as error:  # all ranks must hear of it
            problem = f"{type(error).__name__}: {error}"
        try:
            parts = self._agree([part, problem], "parts")
        except Exception:
            share_files.remove_part(self._folder, self._name)
            raise
        if self._group.rank == 0:
            try:
                share_files.publish(self._folder, Manifest(self._parameters, tuple(parts)))
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        self._agree([part, problem], "manifest")

    def _agree(self, mine: list[Any], what: str) -> list[Part]:
        """Return the parts of all ranks; fail on all of them where one has a problem."""
        name, site = self._call
        everyones = objects.allgather_object(self._group, mine, f"{name}.{what}", site)
        problems = [
            f"rank {rank}: {problem}"
            for rank, (_, problem) in zip(self._group.ranks, everyones, strict=True)
            if problem
        ]
        if problems:
            raise UsageError(f"shares cannot be saved in {self._folder}: {'; '.join(problems)}")
        return [part for part, _ in everyones]


def save(optimizer: ShardedOptimizer, folder: str | os.PathLike[str], name: str) -> PendingSave:
    """Begin to save the state of all shares; collective. See ``save_shares`` of the optimizer."""
    site = call_site()
    group = optimizer.group
    states = [_copy_of(each) for each in optimizer.own_states()]
    # One token for all: also two jobs that save into one folder have different parts.
    token = objects.broadcast_object(group, secrets.token_hex(8), group.ranks[0], name, site)
    part = share_files.part_name(token, group.rank, group.size)
    pending = PendingSave(group, Path(folder), part, (name, site))
    options = optimizer.numbered_options()
    pending.start(states, options, _described(optimizer.shares))
    return pending


def load(optimizer: ShardedOptimizer, folder: str | os.PathLike[str], name: str) -> None:
    """Load this rank's share of a checkpoint; collective. See ``load_shares`` of the optimizer."""
    site, group, path = call_site(), optimizer.group, Path(folder)
    found: Manifest | str = ""
    if group.rank == 0:
        try:
            found = share_files.read_manifest(path)
        except (OSError, UsageError) as error:
            found = str(error)
    # All of one: another job may save into this folder meanwhile.
    manifest = objects.broadcast_object(group, found, group.ranks[0], name, site)
    if isinstance(manifest, str):
        raise UsageError(f"there are no shares in {folder} to load: {manifest}")
    problem = ""
    try:
        _check_parameters(manifest, optimizer.shares, str(folder))
        have, saved = _read(manifest, path, optimizer.shares)
        optimizer.check_groups(saved)
        optimizer.load_pieces(have, [options_of(group) for group in saved])
    except (UsageError, HorovodInternalError) as error:
        problem = str(error)
    objects.agree(group, problem, f"{name}.loaded", site)


def _read(
    manifest: Manifest, folder: Path, shares: ParameterShares
) -> tuple[list[PieceState], list[dict[str, Any]]]:
    """Return the pieces in the parts that this rank needs, and the groups in one of them."""
    have: list[PieceState] = []
    options: list[dict[str, Any]] = []
    for number, part in enumerate(manifest.parts):
        pieces = [Piece(*numbers) for numbers in part.pieces]
        is_needed = any(_overlap(piece, own) for piece in pieces for own in shares.pieces)
        if not is_needed and (number or shares.pieces):
            continue
        values = share_files.read_part(folder, part)
        options = options or values["options"]
        for piece, elements, others in zip(
            pieces, values["elements"], values["others"], strict=True
        ):
            have.append(PieceState(piece, elements, others))
    return have, options


def _overlap(first: Piece, second: Piece) -> bool:
    return (
        first.parameter == second.parameter
        and first.begin < second.end
        and second.begin < first.end
    )


def _check_parameters(manifest: Manifest, shares: ParameterShares, folder: str) -> None:
    saved, own = manifest.parameters, _described(shares)
    if len(saved) != len(own):
        raise UsageError(
            f"the shares in {folder} are of {len(saved)} parameters, but the optimizer has "
            f"{len(own)}"
        )
    for (name, layout), (own_name, own_layout) in zip(saved, own, strict=True):
        if (name, layout) != (own_name, own_layout):
            raise UsageError(
                f"the shares in {folder} have {name} of {layout} where the optimizer has "
                f"{own_name} of {own_layout}"
            )


def _described(shares: ParameterShares) -> tuple[tuple[str, str], ...]:
    return tuple((shares.names[param], _layout_of(param)) for param in shares.params)


def _layout_of(param: torch.Tensor) -> str:
    shape = f"shape {tuple(param.shape)}"
    return shape if param.is_contiguous() else f"{shape} with strides {param.stride()}"


def _copy_of(state: PieceState) -> PieceState:
    """Copy state to the host, so that the next step may change it."""
    return replace(state, elements=_on_host(state.elements), others=_on_host(state.others))


def _on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().cpu().clone() if hasattr(value, "detach") else value
        for key, value in values.items()
    }
