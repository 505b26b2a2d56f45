"""Job files for Slurm and Kubernetes: as they were written once, and valid."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from horovod.errors import UsageError
from horovod.runner.experiment.export import FORMATS, export
from horovod.runner.experiment.job_file import parse_job_file
from horovod.runner.experiment.kubernetes import Wishes

EXPECTED = Path(__file__).with_name("exported")
SINGLE = """\
project: Digits_2
train:
  horovod: {workers: {count: 2, processes: 2}}
  image: {name: "my/image:1", install: [pip install one]}
  install: [pip install two]
  resources: {gpus: 2, cpus: 3, mem: 4Gi}
  run:
  - echo it's $HOROVOD_RANK
  - python train.py
"""
GRID = """\
project: grid
train:
  horovod: {workers: 3}
  parameters: {lr-decay: [0.1, "it's"]}
  concurrency: 2
  run: python train.py {{lr-decay}}
"""
NEW = """\
version: 2
project: new
train:
  timeout: 90s
  restarts: 2
  env: {WORD: it's}
  run:
  - {cmd: make data, on: rank0}
  - python train.py
"""
# What the operators of Kubeflow ask for.
CONTAINER = {
    "type": "object",
    "required": ["image", "command", "args", "env"],
    "properties": {
        "args": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
        "env": {"type": "array", "items": {"required": ["name"]}},
    },
}
REPLICAS = {
    "type": "object",
    "required": ["replicas", "template"],
    "properties": {"replicas": {"type": "integer"}, "template": {"type": "object"}},
    "additionalProperties": False,
}
SPECS: dict[str, dict[str, Any]] = {
    "TrainJob": {
        "type": "object",
        "required": ["runtimeRef", "trainer"],
        "additionalProperties": False,
        "properties": {
            "runtimeRef": {"required": ["name"]},
            "activeDeadlineSeconds": {"type": "integer"},
            "trainer": {
                **CONTAINER,
                "required": [*CONTAINER["required"], "numNodes", "numProcPerNode"],
                "properties": {
                    **CONTAINER["properties"],
                    "image": {"type": "string"},
                    "command": {"type": "array"},
                    "numNodes": {"type": "integer"},
                    "numProcPerNode": {"type": "integer"},
                    "resourcesPerNode": {"type": "object"},
                },
                "additionalProperties": False,
            },
        },
    },
    "MPIJob": {
        "type": "object",
        "required": ["slotsPerWorker", "mpiReplicaSpecs"],
        "additionalProperties": False,
        "properties": {
            "slotsPerWorker": {"type": "integer"},
            "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
            "runPolicy": {
                "properties": {"cleanPodPolicy": {"enum": ["None", "Running", "All"]}},
            },
            "mpiReplicaSpecs": {
                "required": ["Launcher", "Worker"],
                "properties": {"Launcher": REPLICAS, "Worker": REPLICAS},
                "additionalProperties": False,
            },
        },
    },
}


def text_of(kind: str, source: str = SINGLE, wishes: Wishes | None = None) -> str:
    return FORMATS[kind](parse_job_file(source, "job.yml"), wishes or Wishes())


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_as_it_was_written_once(kind: str) -> None:
    """After a change that is meant, write the file anew: horovodrun experiment export."""
    assert text_of(kind) == (EXPECTED / kind).read_text(encoding="utf-8")


@pytest.mark.parametrize("source", [SINGLE, GRID, NEW])
@pytest.mark.parametrize("kind", [each for each in FORMATS if each != "sbatch"])
def test_manifests_are_valid(kind: str, source: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    wishes = Wishes("an/image", "outputs", "data")
    documents = list(yaml.safe_load_all(text_of(kind, source, wishes)))
    assert len(documents) == (2 if kind == "job" else 1) * (2 if source == GRID else 1)
    for each in documents:
        if each["kind"] not in SPECS:
            kubernetes_validate.validate(each, "1.30", strict=True)
            continue
        jsonschema.validate(each["spec"], SPECS[each["kind"]])
        for replicas in each["spec"].get("mpiReplicaSpecs", {}).values():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, **replicas["template"]}
            kubernetes_validate.validate(pod, "1.30", strict=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_version_2_adds_is_exported(kind: str) -> None:
    text = text_of(kind, NEW, Wishes("an/image"))
    assert ("--time=2\n" if kind == "sbatch" else "activeDeadlineSeconds: 90\n") in text
    assert '[ "${HOROVOD_RANK:-$SLURM_PROCID}" != 0 ] || exec bash -e -o pipefail -c' in text
    assert "export WORD='it'\"'\"'s'" in text or "value: it's\n" in text


@pytest.mark.parametrize("kind", FORMATS)
def test_lines_and_what_is_installed_have_the_shell_of_the_file(kind: str) -> None:
    shell = "  install: [pip install one]\n  shell: dash -e -c\n"
    text = text_of(kind, NEW + shell, Wishes("an/image"))
    assert text.count("bash") == (1 if kind == "sbatch" else 0)  # the script itself
    assert "|| exec dash -e -c '\"'\"'make data'\"'\"''" in text
    assert "dash -e -c 'python train.py'" in text
    assert "dash -e -c 'set -e" in text


@pytest.mark.parametrize("kind", [each for each in FORMATS if each != "sbatch"])
def test_kubernetes_expands_nothing_in_a_manifest(kind: str) -> None:
    source = GRID.replace("it's", "$(EXPERIMENT_ID)$$")
    source = source.replace("python train.py", 'echo $$ $(pwd) "$OUTPUT_DIR"; python train.py')
    text = text_of(kind, source, Wishes("an/image"))
    read = re.sub(r"\$(\$|\(\w+\))", lambda found: "$" if found[1] == "$" else "expanded", text)
    assert 'echo $$ $(pwd) "$OUTPUT_DIR"; python train.py' in read
    assert "value: $(EXPERIMENT_ID)$$\n" in read
    assert "expanded" not in read


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "job.yml"
    path.write_text(NEW + "  elastic: {min: 1}\n")
    said = io.StringIO()
    assert export(str(path), ["--format", "sbatch"], io.StringIO(), said) == 0
    assert [line.split(": ")[1:3] for line in said.getvalue().splitlines()] == [
        ["train.restarts", "not exported"],
        ["train.elastic", "not exported"],
    ]
    path.write_text(GRID)
    with pytest.raises(UsageError, match=r"names no image: write train\.image, or give --image"):
        export(str(path), ["--format", "job"], io.StringIO(), io.StringIO())
    words = ["--format", "job", "--image", "an/image", "-o"]
    with pytest.raises(UsageError, match="cannot write /no/such"):
        export(str(path), [*words, "/no/such"], io.StringIO(), io.StringIO())
    assert export(str(path), [*words, str(tmp_path / "x")], io.StringIO(), io.StringIO()) == 0
    assert "an/image" in (tmp_path / "x").read_text()


@pytest.mark.parametrize("project", ["Digits_2", "9lives", "a" * 80])
def test_names_are_those_that_kubernetes_allows(project: str) -> None:
    text = text_of("job", GRID.replace("grid", project, 1), Wishes("an/image"))
    for each in yaml.safe_load_all(text):
        name = each["metadata"]["name"]
        assert name[0].isalpha() and len(name) <= 60 and name == name.lower()  # noqa: PT018
