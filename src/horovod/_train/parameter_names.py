"""Names of an optimizer's parameters, and which of them are reduced together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from horovod._rank import context
from horovod._train import objects
from horovod._train.gradients import split_list
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.process_set import group_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from horovod._rank.group import Group
    from horovod._train.process_set import ProcessSet

P = TypeVar("P", bound=Hashable)

_numbers = NameNumbers()


class NameSuffix:
    """Tells the names of an optimizer from those of others that may be in flight too.

    Args:
        names: of the optimizer's parameters.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._number = JobNumber(_numbers, names)

    def within(self, group: Group) -> str:
        """Return a suffix for all names; empty for the first optimizer that uses them in this job.

        Args:
            group: the ranks that reduce; they are about to.
        """
        number = self._number.within(group)
        return "" if number == 1 else f".optimizer{number}"


def name_parameters(
    param_groups: Iterable[dict[str, Any]],
    named_parameters: Iterable[tuple[str, P]] | None,
) -> dict[P, str]:
    """Names every parameter of an optimizer.

    Args:
        param_groups: those of the optimizer.
        named_parameters: pairs that cover all parameters, perhaps more; None names them by place.

    Raises:
        UsageError: these are no pairs, a name stands twice, or a parameter has no name.
    """
    by_place = {
        param: f"allreduce.noname.{group_index}.{index}"
        for group_index, group in enumerate(param_groups)
        for index, param in enumerate(group["params"])
    }
    if named_parameters is None:
        return by_place
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise UsageError(
            "named_parameters must be pairs of name and tensor, such as model.named_parameters()"
        )
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise UsageError(f"named_parameters has names that stand twice: {', '.join(twice)}")
    names = {param: name for name, param in pairs}
    unnamed = [place for param, place in by_place.items() if param not in names]
    if unnamed:
        raise UsageError(
            f"named_parameters does not name {len(unnamed)} of the optimizer's {len(by_place)} "
            f"parameters (group.index: {', '.join(p[17:] for p in unnamed[:5])}); pass the "
            "named_parameters() of every model that the optimizer trains"
        )
    return names


def make_groups(
    trainable: Sequence[P],
    names: dict[P, str],
    groups: int | Sequence[Sequence[P]] | None,
    process_set: ProcessSet,
    call_site: str,
    kind: type[P],
) -> list[list[P]]:
    """Divides the trainable parameters into groups that are reduced as one operation.

    Args:
        trainable: the parameters, in the order of the optimizer.
        names: of the parameters.
        groups: how many groups of consecutive parameters, or the members of each group; None
            reduces each parameter by itself.
        process_set: the ranks; with a number of groups they agree on the order of rank 0, unless
            training is elastic: a newcomer makes its groups when no other rank does.
        call_site: ``file:line`` of the caller.
        kind: the class of parameters.

    Raises:
        UsageError: ``groups`` makes no sense.
        HorovodInternalError: the ranks do not name the same parameters.
    """
    if groups is None:
        return [[param] for param in trainable]
    if isinstance(groups, int):
        if groups <= 0:
            raise UsageError(f"groups={groups} must be positive")
        if context.elastic_worker() is not None:
            return [part for part in split_list(list(trainable), groups) if part]
        ordered = _in_order_of_first(trainable, names, group_of(process_set), call_site)
        return [part for part in split_list(ordered, groups) if part]
    listed = _listed_groups(groups, kind)
    wanted = set(trainable)
    chosen = [[param for param in group if param in wanted] for group in listed]
    grouped = {param for group in chosen for param in group}
    alone = [[param] for param in trainable if param not in grouped]
    return [group for group in chosen if group] + alone


def _listed_groups(groups: Sequence[Sequence[P]], kind: type[P]) -> list[list[P]]:
    try:
        listed = [list(group) for group in groups if not isinstance(group, kind)]
    except TypeError:
        listed = []
    if len(listed) != len(groups):
        raise UsageError("groups must be a positive integer or a list of lists of parameters")
    seen: set[P] = set()
    for index, group in enumerate(listed):
        for param in group:
            if not isinstance(param, kind):
                raise UsageError(f"groups[{index}] holds a {type(param).__name__}, not a tensor")
            if param in seen:
                raise UsageError(f"groups[{index}] holds a tensor that is in a group already")
            seen.add(param)
    return listed


def _in_order_of_first(
    trainable: Sequence[P], names: dict[P, str], group: Group, site: str
) -> list[P]:
    if group.size == 1 or not group.is_member:
        return list(trainable)
    what = "DistributedOptimizer(groups=…)"
    own = [names[param] for param in trainable]
    order = objects.broadcast_object(group, own, group.ranks[0], what, site)
    difference = sorted(set(own) ^ set(order))
    problem = ", ".join(difference[:5])
    objects.agree(
        group,
        f"not the trainable parameters of rank {group.ranks[0]}: {problem}" if problem else "",
        what,
        site,
    )
    by_name = {names[param]: param for param in trainable}
    return [by_name[name] for name in order]
