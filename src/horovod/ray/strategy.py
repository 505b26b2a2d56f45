"""The placement of a job's workers: placement groups of Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.ray.settings import Wanted

__all__ = ["create_placement_group"]

_ANY_BUNDLE = -1


@dataclass(frozen=True)
class Placement:
    """Resources that are reserved for the workers of a job.

    Attributes:
        group: the placement group.
        bundles: in which of its bundles each worker runs.
        is_own: whether it was made for this job, and goes with it.
    """

    group: Any
    bundles: tuple[int, ...]
    is_own: bool

    def of(self, worker: int) -> PlacementGroupSchedulingStrategy:
        """Return where a worker is to be started."""
        return PlacementGroupSchedulingStrategy(
            self.group, self.bundles[worker], placement_group_capture_child_tasks=False
        )

    def remove(self) -> None:
        """Gives the resources back, if they are the job's own. Ends what runs there."""
        if self.is_own:
            remove_placement_group(self.group)


def create_placement_group(
    resources_per_bundle: Mapping[str, float],
    num_bundles: int,
    pg_timeout: float,
    pg_strategy: str,
) -> tuple[Any, list[dict[str, float]]]:
    """Reserves resources, and waits until they are there.

    Args:
        resources_per_bundle: for example ``{"CPU": 2}``; all of a bundle are on one node.
        num_bundles: how many of these.
        pg_timeout: seconds to wait.
        pg_strategy: of Ray, for example "PACK" or "STRICT_SPREAD".

    Returns:
        The placement group, and its bundles.

    Raises:
        TimeoutError: the cluster did not have the resources in time. Nothing stays reserved.
    """
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    group = placement_group(bundles, strategy=pg_strategy)
    try:
        if group.wait(pg_timeout):
            return group, group.bundle_specs
    except BaseException:
        remove_placement_group(group)
        raise
    remove_placement_group(group)
    where = " on different nodes" if pg_strategy == "STRICT_SPREAD" else ""
    raise TimeoutError(
        f"the Ray cluster did not have {num_bundles} x {_text(resources_per_bundle)}{where} within "
        f"{pg_timeout:g} s: it has {_text(ray.cluster_resources())}, of which "
        f"{_text(ray.available_resources())} is free; ask for less, add nodes, or wait for longer "
        "(placement_group_timeout_s)"
    )


def place(wanted: Wanted, timeout_s: float) -> Placement:
    """Finds room for all workers of a job.

    Raises:
        TimeoutError: see :func:`create_placement_group`.
    """
    current = get_current_placement_group() if wanted.use_current_placement_group else None
    if current is not None:
        return Placement(current, (_ANY_BUNDLE,) * wanted.size, is_own=False)
    each = {"CPU": wanted.cpus_per_worker, "GPU": wanted.gpus_per_worker}
    if wanted.num_workers:
        per_bundle, num_bundles, strategy = 1, wanted.num_workers, "PACK"
    else:
        per_bundle, num_bundles = wanted.num_workers_per_host, wanted.num_hosts or 0
        strategy = "STRICT_SPREAD"
    resources = {name: amount * per_bundle for name, amount in each.items() if amount}
    group, _ = create_placement_group(resources, num_bundles, timeout_s, strategy)
    bundles = tuple(bundle for bundle in range(num_bundles) for _ in range(per_bundle))
    return Placement(group, bundles, is_own=True)


def _text(resources: Mapping[str, float]) -> str:
    # The others are names of nodes, memory, and what belongs to placement groups.
    named = [
        f"{amount:g} {name}"
        for name, amount in sorted(resources.items())
        if not any(part in name for part in (":", "memory", "_group_"))
    ]
    return ", ".join(named) or "nothing"
