"""Sleeps in loops, module state and long parameter lists are absent, with exceptions."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "horovod"
MOST_PARAMETERS = 8

# By module: why its loop can wait for nothing better than the time.
SLEEPS = {
    "_job/bootstrap.py": "a port before it listens, and MPI, which has no wait with a deadline",
    "_job/lent_store.py": "a text of a job that was killed, which rank 0 replaces",
    "_rendezvous/dial.py": "a port that nobody listens on yet",
    "_rendezvous/job_file.py": "a file that another host writes",
    "_rendezvous/same_user.py": "an abstract socket before it listens",
    "_rendezvous/sockets.py": "a host name that is not known yet",
    "data/compute_config.py": "a file that another host writes",
    "jax/interrupts.py": "counters of XLA's threads, which nobody announces",
    "runner/experiment/display.py": "the next refresh of the display",
    "runner/experiment/logs.py": "files that other processes extend",
    "spark/common/preparation.py": "files of a mounted file system",
}
# Folders and modules below the context of a rank.
BELOW = [
    "_rank/start.py",
    "_rank/init_arguments.py",
    "_rank/reports",
    "_rank/group.py",
    "_rank/libraries",
    "_rank/cores.py",
    "_rank/results.py",
    "_job",
    "_rendezvous",
    "_settings",
    "_base",
    "_compat",
]
# By variable or cached function: what belongs to the process rather than to a job.
STATE = {
    "_base/files.py:_num_parts": "distinguishes temporary files of this process",
    "_base/log.py:_handler": "the logger is the process's, so the last job chooses its form",
    "_job/assigned.py:_assigned": "a context variable, which each thread has by itself",
    "_job/python_path.py:_finds_horovod": "what Python finds does not change in a launch",
    "_job/worker.py:_joined": "workers that the child of a fork must abandon",
    "_rank/libraries/gpu.py:find_driver": "the libraries of this process do not change",
    "_rank/libraries/gpu.py:find_nccl": "the libraries of this process do not change",
    "_rank/libraries/mpi.py:find_library": "the libraries of this process do not change",
    "_rank/reports/phases.py:_kind_of": "depends on the name of a file alone",
}
# By module: functions whose signatures Horovod's interface prescribes; no others are that long.
INTERFACE = {
    "jax/ops.py": "allreduce",
    "jax/optimizer.py": "DistributedOptimizer",
    "keras/optimizer.py": "DistributedOptimizer PartialDistributedOptimizer",
    "ray/elastic.py": "ElasticRayExecutor.create_settings",
    "ray/executor.py": "RayExecutor.__init__",
    "ray/trainer.py": "HorovodTrainer.__init__",
    "ray/tune.py": "DistributedTrainableCreator",
    "runner/function/run.py": "run",
    "spark/common/datamodule.py": "DataModule.__init__",
    "spark/common/preparation.py": "prepare_data",
    "spark/data/reader.py": "ParquetReader.__init__",
    "spark/elastic.py": "run_elastic",
    "spark/running.py": "run",
    # In place of it goes a function of the user.
    "spark/torch/training.py": "_step",
    "tensorflow/gradient_aggregation.py": "LocalGradientAggregationHelper.__init__",
    "tensorflow/keras/distributing.py": "DistributedOptimizer PartialDistributedOptimizer",
    "tensorflow/optimizer.py": "DistributedOptimizer",
    "tensorflow/reductions.py": "allreduce grouped_allreduce reducescatter grouped_reducescatter",
    "tensorflow/tape.py": "DistributedGradientTape PartialDistributedGradientTape",
    "torch/optimizer.py": "DistributedOptimizer",
    "torch/reductions.py": "allreduce allreduce_async allreduce_async_"
    " grouped_allreduce grouped_allreduce_async grouped_allreduce_async_",
}


def trees(*names: str) -> dict[str, ast.Module]:
    """Return the parsed modules of files and folders of ``horovod``, by path."""
    paths = [SOURCE / name for name in names]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) or [path])]
    return {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text()) for file in files}


def sleeps(tree: ast.AST) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
    ]


def module_state(tree: ast.Module) -> list[str]:
    """Return variables of a module, which unlike constants are in lower case, and its caches."""
    names = [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            cached = any("cache" in ast.unparse(each) for each in node.decorator_list)
            names += [node.name] if cached else []
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            can_change = isinstance(node.value, ast.Call | ast.List | ast.Dict | ast.Set)
            exempt = target == "__all__" or ast.unparse(node).partition(" = ")[2].startswith(
                ("logging.getLogger(", "partial(")
            )
            names += [target] if can_change and target.islower() and not exempt else []
    return names


def long_signatures(tree: ast.Module) -> dict[str, int]:
    """Return the number of parameters of each function that has too many, without ``self``."""
    found = {}
    owners = {
        method: node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            number = sum(each.arg not in ("self", "cls") for each in arguments)
            if number > MOST_PARAMETERS:
                name = f"{owners[node]}.{node.name}" if node in owners else node.name
                found[name] = max(number, found.get(name, 0))
    return found


def test_loops_sleep_only_where_nothing_can_be_waited_for() -> None:
    assert {path for path, tree in trees("").items() if sleeps(tree)} == SLEEPS.keys()


def test_modules_below_the_context_have_no_state() -> None:
    found = {
        f"{path}:{name}" for path, tree in trees(*BELOW).items() for name in module_state(tree)
    }
    assert found == STATE.keys()


def test_functions_have_few_parameters() -> None:
    found = {
        f"{path}:{name}": number
        for path, tree in trees("").items()
        for name, number in long_signatures(tree).items()
    }
    prescribed = {f"{path}:{name}" for path, names in INTERFACE.items() for name in names.split()}
    assert found.keys() == prescribed, found


def test_the_rules_can_fail() -> None:
    parameters = ", ".join(f"p{number}" for number in range(9))
    tree = ast.parse(
        "_seen: set[int] = set()\nCONSTANT = len([])\n_logger = logging.getLogger(__name__)\n"
        "_memory = {}\n@functools.cache\ndef f(): global now; time.sleep(1)\n"
        f"class C:\n    def g(self, {parameters}): ...\n    def h(self, {parameters[4:]}): ...\n"
    )
    assert sleeps(tree) == ["time.sleep(1)"]
    assert sorted(module_state(tree)) == ["_memory", "_seen", "f", "now"]
    assert long_signatures(tree) == {"C.g": 9}
