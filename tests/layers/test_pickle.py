"""Every place that unpickles is known, with the reason why what it unpickles is trusted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import horovod

SOURCE = Path(horovod.__file__).parent

# File, and why the bytes come from a rank or the launcher of the same job. Add a line only with a
# reason that names the check.
TRUSTED = {
    "ray/elastic_actor.py": "an error of an actor of the job, which only Ray can have brought",
    "runner/function/call.py": "results from the launcher's store, which serves proven ranks only",
    "runner/function/task.py": "the function, from the job's store: both ends are proven",
    "spark/common/serialization.py": "a stage of Spark that its user loads, who is warned",
    "spark/keras/estimator.py": "copies of what the estimator has pickled itself",
    "spark/keras/model.py": "a stage of Spark that its user loads",
    "spark/torch/model.py": "a stage of Spark that its user loads",
    "spark/torch/model_bytes.py": "the model that the driver sends, or a stage that its user loads",
    "testing/processes.py": "outcomes of ranks, from a folder that only this user can write to",
    "testing/rank_process.py": "the call, from a folder that only this user can write to",
    "_train/objects.py": "from the engine: connections of authenticated ranks of the same job",
}
PICKLERS = ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "_pickle")
LOADERS = ("load", "loads", "Unpickler")
# Loads a pickle if it is not told otherwise: torch.load(…, weights_only=True) refuses objects.
FRAMEWORK_LOADERS = ("torch.load", "numpy.load", "np.load")
# Of MXNet's updaters and trainers: they load pickles in any case.
METHODS_THAT_LOAD = ("set_states", "load_states")


def names_of(call: ast.Call) -> str:
    return ast.unparse(call.func)


def refuses_objects(call: ast.Call) -> bool:
    return any(
        each.arg == "weights_only"
        and isinstance(each.value, ast.Constant)
        and each.value.value is True
        for each in call.keywords
    )


def uses_of(path: Path) -> list[str]:
    """What the file does with pickles: its calls that load, and loaders that it imports by name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(), path.name)):
        if isinstance(node, ast.Call):
            module, _, function = names_of(node).rpartition(".")
            if (
                (module in PICKLERS and function in LOADERS)
                or (names_of(node) in FRAMEWORK_LOADERS and not refuses_objects(node))
                or (module and function in METHODS_THAT_LOAD)
            ):
                found.append(names_of(node))
        elif isinstance(node, ast.ImportFrom) and node.module in PICKLERS:
            # Nobody may hide a loader behind another name.
            found += [f"from {node.module} import {alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [
                f"import {alias.name} as {alias.asname}"
                for alias in node.names
                if alias.name in PICKLERS and alias.asname is not None
            ]
    return found


def test_every_unpickling_is_known_and_trusted() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): uses
        for path in sorted(SOURCE.rglob("*.py"))
        if (uses := uses_of(path))
    }
    assert found.keys() == TRUSTED.keys(), f"new or gone: {found.keys() ^ TRUSTED.keys()}"


def test_the_page_on_security_lists_every_place_that_unpickles() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
    chapter = page.partition("\n## What is unpickled\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`src/horovod/([\w/]+\.py)`", chapter)) == TRUSTED.keys()


def test_nothing_that_listens_can_unpickle() -> None:
    """The layer of sockets does not even know how."""
    for path in (SOURCE / "_rendezvous").glob("*.py"):
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not imported & set(PICKLERS), path.name


def test_the_search_sees_what_it_should(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pickle\nimport cloudpickle as c\nfrom marshal import loads\npickle.loads(b'')\n"
        "pickle.dumps(1)\ntorch.load('x')\njson.loads('1')\ntrainer.load_states('x')\n"
        "torch.load('y', weights_only=True)\ntorch.load('z', weights_only=False)\n"
    )
    assert sorted(uses_of(program)) == [
        "from marshal import loads",
        "import cloudpickle as c",
        "pickle.loads",
        "torch.load",
        "torch.load",
        "trainer.load_states",
    ]
