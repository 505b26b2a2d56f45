"""DistributedOptimizer(shard_state=True): each rank keeps the state of its share alone.

ZeRO stage 1 of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models" (SC 2020, arXiv:1910.02054): gradients are reduce-scattered, each rank steps its share of
the parameters, and the parameters are gathered.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from horovod._rank.reduction import ReduceOp
from horovod._train.call_site import call_site
from horovod._train.optimizer_options import reduces
from horovod.errors import UsageError
from horovod.torch import share_states
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.optimizer import SCALER_MODULES, ReducingOptimizer, parameters_of
from horovod.torch.parameter_shares import ParameterShares, options_of
from horovod.torch.share_checkpoints import load, save
from horovod.torch.share_checks import any_not_finite, check_states
from horovod.torch.share_probe import find_state_of_elements
from horovod.torch.share_reducer import ShareReducer
from horovod.torch.share_states import PieceState
from horovod.torch.sync_check import SampledSyncCheck
from horovod.torch.wrapping import wrap

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from horovod._rank.group import Group
    from horovod._train.gradient_reducer import ReducerSettings
    from horovod.torch.parameter_shares import Groups
    from horovod.torch.share_checkpoints import PendingSave
    from horovod.torch.share_states import State


class ShardedOptimizer(ReducingOptimizer):
    """The form of a DistributedOptimizer whose state is divided among the ranks.

    ``param_groups`` are those of whole parameters, whose options count. The state is that of this
    rank's pieces. During a step the groups are those of the pieces.
    """

    shard_state = True
    _reducer: ShareReducer
    _shares: ParameterShares
    _keys: frozenset[str]
    _has_agreed: Group | None
    _is_complete: bool
    # Which share the state is of; None before there is any.
    _place: tuple[int, int] | None
    _steps: int
    _version: int
    _later: list[PieceState] | None
    _pending_save: PendingSave | None

    @property
    def param_groups(self) -> Groups:
        """The groups of parameters and their options, shared with the wrapped optimizer."""
        groups: Groups = self.__dict__["param_groups"]
        # What GradScaler unscales and looks at are the gradients of the step.
        if sys._getframe(1).f_globals.get("__name__") in SCALER_MODULES:
            return self._groups_for_scaler()
        return groups

    @param_groups.setter
    def param_groups(self, groups: Groups) -> None:
        self.__dict__["param_groups"] = groups

    @outside_of_graphs
    def synchronize(self) -> None:
        """Wait until the pieces of this rank have the sums of all ranks' gradients.

        ``p.grad`` stays that of this rank. To clip, call ``hvd.clip_grad_norm_(optimizer, …)``,
        which needs no call of this method before it.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._reduce_once()

    @outside_of_graphs
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients that are still missing, step this rank's share, and gather.

        All ranks must take the same number of steps.

        Args:
            closure: recomputes the loss and its gradients; called once, before the update.

        Returns:
            What the wrapped class returns: the loss of the closure, or None.

        Raises:
            UsageError: the program has changed ``p.grad`` after it had left, or some ranks have
                lost the state of their shares.
            HorovodInternalError: a reduction failed, and no parameter was changed; or gathering
                failed, and only those of this rank's share were.
        """
        if closure is None:
            if not self._skips:
                self._reduce_once()
            elif not self._reducer.reduced:
                raise UsageError(
                    "step() inside skip_synchronize() without synchronize(): with shard_state=True "
                    "the pieces of this rank have no gradients then"
                )
            self._reducer.check_untouched()
        return self._plain_step(None if closure is None else self._reducing(closure))

    step.hooked = True  # type: ignore[attr-defined]

    @outside_of_graphs
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, also those in flight, and begin to count backward passes again.

        Args:
            set_to_none: set ``p.grad`` to None instead of filling it with zeros.

        Raises:
            HorovodInternalError: a reduction in flight failed.
        """
        super().zero_grad(set_to_none)
        self._shares.drop_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; each has a reduction of its own.

        Raises:
            UsageError: a parameter or its options do not let it be cut into shares.
        """
        super().add_param_group(param_group)
        groups = self.__dict__["param_groups"]
        try:
            self._keys |= find_state_of_elements(self._wrapped)
            added = self._shares.add(groups[-1]["params"])
        except UsageError:
            groups.pop()
            raise
        if self._later is not None:
            self._later += map(PieceState, added)
        self._reducer.divide_again()

    @outside_of_graphs
    def state_dict(self) -> dict[str, Any]:
        """Return options and the whole state, as the wrapped class does; **collective**.

        All ranks of the process set must call it, also if only one of them writes it. It gathers
        all shares: each rank needs memory for the whole state meanwhile. The tensors are on the
        CPU. ``save_shares`` needs neither.

        Raises:
            UsageError: shares of the state are lost, or are of different steps.
            HorovodInternalError: the job failed.
        """
        site = call_site()
        group = self._follow()
        self._agree_on_state(group)
        name = self._reducer.name_of("state")
        whole = share_states.gather(group, self._shares, self._own_states(), (name, site))
        by_param = {self._shares.params[index]: state for index, state in whole.items()}
        # What the wrapped class makes of it may be more than this form knows.
        kept, self.__dict__["state"] = self.__dict__["state"], defaultdict(dict, by_param)
        try:
            return super().state_dict()
        finally:
            self.__dict__["state"] = kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and the share of this rank from a whole state; not collective.

        Gradients in flight and the counts of passes are forgotten. The state may be that of the
        wrapped class, or have been gathered from any number of ranks.

        Raises:
            UsageError: it is the state of other parameters.
        """
        saved = state_dict["param_groups"]
        self.check_groups(saved)
        numbers = [number for group in saved for number in group["params"]]
        order = {param: index for index, param in enumerate(self._shares.params)}
        mine = [order[param] for param in parameters_of(self.__dict__["param_groups"])]
        index_of = dict(zip(numbers, mine, strict=True))
        states = {
            index_of[number]: state
            for number, state in state_dict["state"].items()
            if number in index_of
        }
        have = share_states.states_of_parameters(self._shares, states, self._keys)
        options = [options_of(group) for group in saved]
        if self._reducer.has_ranks:
            self.load_pieces(have, options)
        else:
            self._load_later(have, options)

    def check_groups(self, saved: Groups) -> None:
        """Refuse options of groups of other sizes, which would count for other parameters.

        Raises:
            UsageError: they are such.
        """
        sizes = [len(group["params"]) for group in saved]
        own = [len(group["params"]) for group in self.__dict__["param_groups"]]
        if sizes != own:
            raise UsageError(
                f"the state has groups of {sizes} parameters, but the optimizer has {own}"
            )

    def load_pieces(self, have: Sequence[PieceState], options: Sequence[dict[str, Any]]) -> None:
        """Load options, and this rank's share from the state of pieces cut in any way.

        Raises:
            UsageError: they are not those of all elements, or of different steps.
        """
        self._reducer.abandon()
        self._synchronized = False
        self._reducer.follow()
        states = share_states.cut(self._shares, have)
        with self._on_shares():
            groups = self.__dict__["param_groups"]
            numbers = iter(range(len(self._shares.tensors)))
            numbered = [
                {"params": [next(numbers) for _ in group["params"]], **chosen}
                for group, chosen in zip(groups, options, strict=True)
            ]
            # The order of the pieces in the groups is not that of the shares.
            place = {id(t): place for place, t in enumerate(self._shares.tensors)}
            ordered = [states[place[id(t)]] for t in parameters_of(groups)]
            loaded = {number: state for number, state in enumerate(ordered) if state}
            super(ReducingOptimizer, self).load_state_dict(
                {"state": loaded, "param_groups": numbered}
            )
        self._is_complete, self._later, self._has_agreed = True, None, None
        self._place, self._steps = self._shares.place, 0
        self._version += 1

    def save_shares(self, folder: str | os.PathLike[str]) -> PendingSave:
        """Begin to save options and state into a folder, each rank its share; **collective**.

        Returns when the share has been copied; a thread writes it. The folder holds one checkpoint,
        the one before until the new one is whole on all ranks. A save waits for the one before.

        Args:
            folder: on a file system that all hosts share.

        Returns:
            The save; call its ``wait()`` before the program relies on it or ends.

        Raises:
            UsageError: shares of the state are lost.
            HorovodInternalError: the job failed.
        """
        if self._pending_save is not None:
            self._pending_save.wait()
        self._pending_save = save(self, folder, self._reducer.name_of("save"))
        return self._pending_save

    def load_shares(self, folder: str | os.PathLike[str]) -> None:
        """Load options, and this rank's share from what any number of ranks saved; **collective**.

        Each rank reads the parts only that overlap its share.

        Args:
            folder: as of ``save_shares``.

        Raises:
            UsageError: there are no shares in it, or those of other parameters, or damaged ones.
            MismatchError: a rank could not load its share.
            HorovodInternalError: the job failed.
        """
        load(self, folder, self._reducer.name_of("load"))

    def own_states(self) -> list[PieceState]:
        """Return the state of this rank's pieces, without copies; **collective**.

        Raises:
            UsageError: the ranks have changed, so that a rank lacks some.
            HorovodInternalError: the job failed.
        """
        self._agree_on_state(self._follow())
        return self._own_states()

    def numbered_options(self) -> list[dict[str, Any]]:
        """Return copies of the options of all groups, with the numbers of their parameters."""
        numbers = itertools.count()
        return [
            {**copy.deepcopy(options_of(group)), "params": [next(numbers) for _ in group["params"]]}
            for group in self.__dict__["param_groups"]
        ]

    @property
    def shares(self) -> ParameterShares:
        """The parameters and this rank's pieces of them."""
        return self._shares

    @property
    def version(self) -> int:
        """How often the state has changed."""
        return self._version

    @property
    def group(self) -> Group:
        """The ranks that share."""
        return self._reducer.follow()

    def has_state(self) -> bool:
        """Return whether this rank has the state of any piece."""
        later = self._later or []
        return any(self.__dict__["state"].values()) or not all(each.is_empty for each in later)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles, which would have a share of the state only."""
        raise UsageError(
            "an optimizer with shard_state=True cannot be copied or pickled, as this rank has only "
            "its share of the state; copy what state_dict() returns on all ranks"
        )

    def _load_later(self, have: list[PieceState], options: Sequence[dict[str, Any]]) -> None:
        """Load options now, and state as soon as it is known who shares.

        A newcomer of an elastic job makes its optimizer before it knows its rank.
        """
        self._later, self._has_agreed = have, None
        for group, chosen in zip(self.__dict__["param_groups"], options, strict=True):
            group.update(copy.deepcopy(chosen))
        self._version += 1

    def _local_step(self, closure: Callable[[], Any] | None) -> Any:
        group = self._follow()
        self._agree_on_state(group)
        self._shares.refresh()
        self._place = self._shares.place
        with self._on_shares():
            result = super()._local_step(closure)
        self._steps += 1
        self._version += 1
        self._shares.start_gathering(group, self._reducer.name_of("share"))()
        return result

    def _reduce_once(self) -> None:
        if not self._reducer.reduced:
            self._shares.refresh()
            self._reducer.reduce(parameters_of(self.__dict__["param_groups"]))

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        calls = 0

        def reducing_closure() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise UsageError(
                    f"shard_state=True: {type(self).__name__} calls its closure several times in a "
                    "step, but between the calls no rank has the parameters of all shares; use it "
                    "without shard_state"
                )
            with self._on_groups(self._whole_groups):
                loss = closure()
                self._reducer.reduce(parameters_of(self._whole_groups))
                self._reducer.check_untouched()
            return loss

        return reducing_closure

    @contextmanager
    def _on_shares(self) -> Iterator[None]:
        """Let the groups be those of this rank's pieces; options go there and come back."""
        whole = self._whole_groups = self.__dict__["param_groups"]
        with self._on_groups(self._shares.groups_of_pieces(whole)):
            yield
            for group, stepped in zip(whole, self.__dict__["param_groups"], strict=True):
                group.update(options_of(stepped))

    @contextmanager
    def _on_groups(self, groups: Groups) -> Iterator[None]:
        kept = self.__dict__["param_groups"]
        self.__dict__["param_groups"] = groups
        try:
            yield
        finally:
            self.__dict__["param_groups"] = kept

    def _groups_for_scaler(self) -> Groups:
        """Return the pieces, and a number that is infinite if a gradient of any rank is not finite.

        So all ranks skip the same steps. Gradients have been reduced then.
        """
        self._reduce_once()
        group = self._reducer.follow()
        pieces = self._shares.tensors
        gradients = [piece.grad for piece in pieces if piece.grad is not None]
        name = self._reducer.name_of("finite")
        found = any_not_finite(group, gradients, name, self._reducer.call_site)
        device = self._shares.params[0].device
        flag = torch.zeros(1, dtype=torch.float32, device=device)
        flag.grad = torch.full_like(flag, torch.inf if found else 0.0)
        return [{"params": [*pieces, flag]}]

    def _follow(self) -> Group:
        """Return the ranks that share now.

        Raises:
            UsageError: they have changed, and this rank lacks the state of its new pieces.
        """
        group = self._reducer.follow()
        if self._later is not None:
            self.load_pieces(self._later, list(map(options_of, self.__dict__["param_groups"])))
        state = self.__dict__["state"]
        has_moved = self._place not in (None, self._shares.place)
        # A rank may have had no piece, and so no state, of an optimizer that keeps some.
        if has_moved and (any(state.values()) or (self._steps and self._keys)):
            self._is_complete = False
            state.clear()
        if not self._is_complete:
            raise UsageError(
                "shard_state=True: the ranks have changed, and the optimizer state of the new "
                "shares is on other ranks. Train with hvd.elastic.TorchState, whose commits keep "
                "all shares, or call load_state_dict() or load_shares() after the change"
            )
        return group

    def _agree_on_state(self, group: Group) -> None:
        if group is not self._has_agreed and reduces(group):
            call = self._reducer.name_of("has_state"), self._reducer.call_site
            names = [self._shares.names[param] for param in self._shares.params]
            check_states(group, self._own_states(), self._steps, names, call)
        self._has_agreed = group

    def _own_states(self) -> list[PieceState]:
        state: dict[Any, State] = self.__dict__["state"]
        return share_states.states_of_pieces(self._shares, state, self._keys)


def shard_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    passes: int,
    settings: ReducerSettings,
) -> ShardedOptimizer:
    """Wrap an optimizer, whose state goes into shares.

    Args:
        optimizer: keeps none of its state.
        names: of its parameters.
        passes: backward passes per step.
        settings: how to reduce; sparse gradients are refused if they may travel sparse.

    Raises:
        UsageError: the optimizer, a parameter or an option does not go with shares.
    """
    _check_settings(settings)
    params = parameters_of(optimizer.param_groups)
    shares = ParameterShares(params, names, settings.call_site)
    keys = find_state_of_elements(optimizer)
    densifies = settings.sparse_as_dense
    reducer = ShareReducer(
        replace(settings, sparse_as_dense=True), names, shares, passes, densifies=densifies
    )
    wrapped = wrap(optimizer, ShardedOptimizer)
    wrapped._reducer, wrapped._shares, wrapped._keys = reducer, shares, keys
    wrapped._wrapped = optimizer
    wrapped._sync_check = SampledSyncCheck.configured(settings.process_set, names)
    wrapped._synchronized = wrapped._skips = False
    wrapped._has_agreed, wrapped._is_complete, wrapped._version = None, True, 0
    wrapped._place, wrapped._steps = None, 0
    wrapped._pending_save = wrapped._later = None
    wrapped.op, wrapped.gradient_predivide_factor = settings.op, settings.predivide_factor
    wrapped.sparse_as_dense, wrapped.process_set = densifies, settings.process_set
    kept = dict(optimizer.state)
    wrapped.__dict__["state"] = defaultdict(dict)
    if any(kept.values()):
        whole = {index: kept[param] for index, param in enumerate(params) if param in kept}
        wrapped._later = share_states.states_of_parameters(shares, whole, keys)
    optimizer.state.clear()
    return wrapped


def _check_settings(settings: ReducerSettings) -> None:
    if settings.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"shard_state=True with op={settings.op.name}: a reduce-scatter has Average and Sum "
            "only; use one of them, or the optimizer without shard_state"
        )
    plain = (Compression.none, Compression.auto, Compression.fp16, Compression.bf16)
    if settings.compression not in plain:
        raise UsageError(
            "shard_state=True goes with Compression.none, fp16 and bf16 only, as buckets are "
            "compressed as wholes; use one of them, or the optimizer without shard_state"
        )
