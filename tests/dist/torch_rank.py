"""A rank of torchrun, or one that init_process_group finds by its variables: run by
test_torchrun.py. The argument says what it does.

gloo: meets the others by PyTorch alone. both: by Horovod, then by PyTorch at the same address.
dies: rank 1 is killed in the first round, while the others wait for it. elastic: sums until there
is a file "enough" in the folder that is the second argument. spawn: starts two processes that meet
over a file of PyTorch, whose path is the second argument.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from summing_rank import sum_of_ranks

from horovod._rank import context
from horovod._rank.by_store import start_by_store


def tell(line: str) -> None:
    """In one piece: the lines of several ranks share a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def sum_by_gloo() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    place = f"rank {dist.get_rank()}/{dist.get_world_size()}"
    local = f"local {os.environ['LOCAL_RANK']}/{os.environ['LOCAL_WORLD_SIZE']}"
    tell(f"{place} {local} gloo {total[0]:g}")
    dist.destroy_process_group()
    return float(total[0])


def sum_by_both() -> None:
    context.init()
    total = sum_of_ranks()
    assert total == sum_by_gloo()
    assert total == sum_of_ranks()
    tell(f"rank {context.rank()}/{context.size()} sum {total:g}")


def die_in_the_first_round() -> None:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    context.init()
    if attempt == "0" and context.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(f"rank {context.rank()}/{context.size()} attempt {attempt} sum {sum_of_ranks():g}")


def sum_until_told(folder: Path) -> None:
    """In each generation, leave a file that names its size and this process."""
    import torch
    import torch.distributed as dist

    import horovod.torch.distributed  # noqa: F401

    dist.init_process_group("horovod")
    size = dist.get_world_size()
    while True:
        is_enough = torch.tensor([0, 1]) + torch.tensor([int((folder / "enough").exists()), 0])
        dist.all_reduce(is_enough)
        assert is_enough[1] == size
        (folder / f"{size}.{os.getpid()}").touch()
        if is_enough[0]:
            break
        time.sleep(0.02)  # a step of a training
    dist.destroy_process_group()
    tell(f"rank {os.environ['RANK']}/{size} ended")


def join_over_file(rank: int, path: str) -> None:
    import torch.distributed as dist

    lease = start_by_store(dist.FileStore(path, 2), rank, 2, 90.0)
    tell(f"rank {rank}/{context.size()} sum {sum_of_ranks():g} at {lease.config.rendezvous_addr}")
    lease.group.barrier().wait()
    lease.close()


def main(what: str) -> None:
    if what == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(join_over_file, (sys.argv[2],), nprocs=2)
    elif what == "elastic":
        sum_until_told(Path(sys.argv[2]))
    else:
        {"gloo": sum_by_gloo, "both": sum_by_both, "dies": die_in_the_first_round}[what]()


if __name__ == "__main__":
    main(sys.argv[1])
