"""Job files: all spellings that RiseML's documents had, and everything that can be wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from horovod.errors import UsageError
from horovod.runner.experiment.command import manage
from horovod.runner.experiment.grid import Line
from horovod.runner.experiment.install import install_line
from horovod.runner.experiment.job_file import (
    Experiment,
    parse_job_file,
    project_of,
    read_job_file,
)
from horovod.runner.experiment.schema import json_schema, memory_bytes
from horovod.runner.experiment.yaml_tree import load

ROOT = Path(__file__).resolve().parents[4]
# The file of RiseML's documents, as it stands there.
RISEML = """\
project: example
train:
  framework: tensorflow
  tensorflow:
    version: 1.5.0
    horovod:
      workers: 32
  resources:
    gpus: 4
    cpus: 12
    mem: 4096
  run:
  - python train.py
"""


NEW = "version: 2\n"


def parsed(text: str) -> Experiment:
    return parse_job_file(text, "riseml.yml")


def train(*lines: str) -> str:
    """A file with some more lines below train."""
    return "\n".join(["project: p", "train:", "  run: [python train.py]", *lines])


def problems(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parsed(text)
    return str(caught.value).splitlines()


def test_the_file_of_riseml_runs_as_it_stands() -> None:
    experiment = parsed(RISEML)
    assert (experiment.workers, experiment.processes, experiment.size) == (32, 4, 128)
    assert [run.lines for run in experiment.runs] == [(Line("python train.py"),)]
    assert [each.split(": ")[0] for each in experiment.warnings] == [
        "riseml.yml:5:5",
        "riseml.yml:11:5",
    ]
    assert "TensorFlow 1.5.0" in experiment.warnings[0]


@pytest.mark.parametrize(
    ("section", "shape"),
    [
        ("  tensorflow: {horovod: {workers: 32}}", (32, 1)),
        ("  tensorflow: {horovod: {workers: {count: 32}}}", (32, 1)),
        ("  tensorflow: {horovod: {workers: {count: 32, processes: 2}}}", (32, 2)),
        ("  horovod: {workers: 32}", (32, 1)),
        ("  distributed: {type: horovod, worker: 32}", (32, 1)),
        ("  distributed: {type: horovod, workers: 32}", (32, 1)),
        ("  distributed: {horovod: {workers: 32}}", (32, 1)),
        ("  tensorflow: {distributed: {horovod: {workers: 32}}}", (32, 1)),
        ("  tensorflow: {distributed: false}", (1, 1)),
        ("  horovod: {workers: 2}\n  resources: {gpus: 4}", (2, 4)),
        ("  horovod: {workers: {count: 2, processes: 1}}\n  resources: {gpus: 4}", (2, 1)),
        ("  resources: {gpus: 0, cpus: 0.5, mem: 2}", (1, 1)),
    ],
)
def test_every_spelling_of_workers(section: str, shape: tuple[int, int]) -> None:
    experiment = parsed(train(section))
    assert (experiment.workers, experiment.processes) == shape
    again = parsed(experiment.canonical)
    assert again.file == experiment.file
    assert again.canonical == experiment.canonical


def test_what_is_written_counts_and_not_what_yaml_makes_of_it() -> None:
    experiment = parsed(
        train("  tensorflow: {version: 1.10}", "  parameters: {lr: [1e-6, 0.10, on]}")
    )
    assert experiment.file.train.tensorflow is not None
    assert experiment.file.train.tensorflow.version == "1.10"
    assert [run.parameters["lr"] for run in experiment.runs] == ["1e-6", "0.10", "on"]


@pytest.mark.parametrize(("processes", "gpus"), [(1, 4), (2, 2), (4, 0), (8, 0)])
def test_a_process_may_have_several_gpus(processes: int, gpus: int) -> None:
    workers = f"  horovod: {{workers: {{count: 2, processes: {processes}}}}}"
    experiment = parsed(train(workers, "  resources: {gpus: 4}"))
    assert [line.gpus for line in experiment.runs[0].lines] == [gpus]


def test_lines_may_be_folded_or_one_word() -> None:
    text = "project: p\ntrain:\n  run: >-\n    python\n    train.py\n"
    assert parsed(text).runs[0].lines == (Line("python train.py"),)


def test_keys_of_others_are_left_alone() -> None:
    assert parsed("x-team: vision\n" + train("  x-note: {any: thing}")).size == 1
    assert parsed("x-ports: [2222:22, 0755]\n" + train("  x-note: {id: 1_000}")).size == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (4, 4 * 10**9),
        (255, 255 * 10**9),
        (256, 256 * 2**20),
        (4096, 4096 * 2**20),
        ("4Gi", 4 * 2**30),
        ("512M", 512 * 10**6),
    ],
)
def test_memory(value: int | str, number: int) -> None:
    assert memory_bytes(value) == number


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "1:1", "the file is empty"),
        ("project: [p", "1:", "this is not YAML"),
        ("- a", "1:1", "must have keys of its own"),
        ("train: {run: [a]}", "1:1: project", "is missing"),
        ("project: p", "1:1: train", "is missing"),
        ("project: p\ntrain: {}", "2:1: train.run", "is missing"),
        ("project: p\ntrain: {run: []}", "2:9: train.run", "must not be empty"),
        ("project: 5\ntrain: {run: [a]}", "1:1: project", "not 5"),
        ("project: a b\ntrain: {run: [a]}", "1:1: project", "pattern"),
        ("version: 3\n" + train(), "1:1: version", "must be '1' or '2', not '3'"),
        ("prroject: p\n" + train(), "1:1: prroject", 'did you mean "project"?'),
        ("deploy: {}\n" + train(), "1:1: deploy", "alpha version"),
        (train("  horvod: {workers: 2}"), "4:3: train.horvod", 'did you mean "horovod"?'),
        (train("  horovod: {workers: 0}"), "4:13: train.horovod.workers", "greater than or equal"),
        (train("  horovod: {workers: two}"), "4:13: train.horovod.workers", "keys of its own"),
        (train("  horovod: {wwrkers: 2}"), "4:13: train.horovod.wwrkers", 'mean "workers"?'),
        (
            train("  horovod:", "    workers:", "      count: 2", "      processes: 0"),
            "7:7: train.horovod.workers.processes",
            "greater than or equal to 1",
        ),
        (
            train("  horovod: {workers: 2}", "  tensorflow: {horovod: {workers: 2}}"),
            "2:1: train",
            "keep one of them",
        ),
        (
            train("  tensorflow: {distributed: {ps: 1, worker: 2}}"),
            "4:30: train.tensorflow.distributed.ps",
            "parameter servers",
        ),
        (
            train("  distributed: {type: mpi, workers: 2}"),
            "4:17: train.distributed.type",
            "use horovod",
        ),
        (train("  framework: torch"), "4:3: train.framework", "'pytorch'"),
        (train("  framework: pytorch"), "4:3: train.framework", "write 'version: 2'"),
        (train("  timeout: 2h"), "4:3: train.timeout", "write 'version: 2'"),
        (train("  restarts: 2"), "4:3: train.restarts", "write 'version: 2'"),
        (
            "project: p\ntrain:\n  run:\n  - {cmd: a, on: rank0}",
            "4:5: train.run[0]",
            "write 'version: 2'",
        ),
        (NEW + train("  timeout: 2 hours"), "5:3: train.timeout", "write 90s, 30m, 2h or 1d"),
        (NEW + train("  timeout: 0"), "5:3: train.timeout", "not a length of time"),
        (NEW + train("  restarts: -1"), "5:3: train.restarts", "greater than or equal to 0"),
        (NEW + train("  metrics: {loss: low}"), "5:13: train.metrics.loss", "'max' or 'min'"),
        (NEW + train("  env: {A B: 1}"), "5:9: train.env.A B", "pattern"),
        (NEW + train("  env: {PATH: /bin}"), "5:9: train.env.PATH", "need it unchanged"),
        (train("  search: random", "  parameters: {a: [1]}"), "4:3: train.search", "version: 2"),
        (NEW + train("  search: random"), "5:3: train.search", "no parameters to choose"),
        (
            NEW + train("  search: {method: asha}", "  parameters: {a: [1]}"),
            "5:3: train.search",
            "write metrics: {accuracy: max}",
        ),
        (
            NEW + train("  search: grid", "  parameters: {a: [1]}"),
            "5:3: train.search",
            "'random' or 'asha'",
        ),
        (
            NEW + train("  parameters: {a: {between: {min: 1, max: 2}}}"),
            "5:20: train.parameters.a.between",
            "applies only to a search",
        ),
        (train("  elastic: {min: 1}"), "4:3: train.elastic", "write 'version: 2'"),
        (
            NEW + train("  elastic: {min: 2}"),
            "5:3: train.elastic",
            "number of workers, 1,",
        ),
        (
            NEW + train("  elastic: {min: 1}", "  concurrency: 2"),
            "5:3: train.elastic",
            "write concurrency: 1",
        ),
        (
            NEW + "project: p\ntrain:\n  run:\n  - a\n  - {cmd: b, onn: host}",
            "6:14: train.run[1].onn",
            'did you mean "on"?',
        ),
        (
            NEW + "project: p\ntrain:\n  run:\n  - {cmd: b, on: rank1}",
            "5:14: train.run[0].on",
            "'all', 'host' or 'rank0'",
        ),
        (
            NEW + "project: p\ntrain:\n  run:\n  - cmd: b {{lr}}",
            "5:5: train.run[0]",
            "there are no parameters",
        ),
        (train("  tensorflow: {tensorboard: maybe}"), "4:16: train.tensorflow.tensorboard", "bool"),
        (train("  resources: {gpus: -1}"), "4:15: train.resources.gpus", "not -1"),
        (train("  resources: {gpus: 1.5}"), "4:15: train.resources.gpus", "integer"),
        (train("  resources: {cpus: 0}"), "4:15: train.resources.cpus", "greater than 0"),
        (train("  resources: {mem: 4 gigs}"), "4:15: train.resources.mem", "write 4Gi"),
        (
            train("  resources: {disk: 4}"),
            "4:15: train.resources.disk",
            "here may be cpus, gpus, mem",
        ),
        (train("  resources: {}", "  resources: {}"), "5:3: train.resources", "is in line 4"),
        (train("  parameters: {lr: 0.1}"), "4:16: train.parameters.lr", "list"),
        (train("  parameters: {lr: []}"), "4:16: train.parameters.lr", "must not be empty"),
        (
            train("  parameters: {n: {range: {min: 1, max: 3}}}"),
            "4:20: train.parameters.n.range.step",
            "is missing",
        ),
        (
            train("  parameters: {n: {range: {min: 3, max: 1, step: 1}}}"),
            "4:20: train.parameters.n.range",
            "do not lead from 3 to 1",
        ),
        (
            train("  parameters: {a-b: [1], A_b: [1]}"),
            "4:26: train.parameters.A_b",
            "its variable A_B is that of a-b",
        ),
        (
            "project: p\ntrain:\n  run:\n  - a\n  - b {{learning-rate}}\n  parameters: {lr: [1]}",
            "5:5: train.run[1]",
            "run uses {{learning-rate}}, but parameters has lr",
        ),
        (
            train("  parameters: {horovod-rank: [1]}"),
            "4:16: train.parameters.horovod-rank",
            "must not set the variable HOROVOD_RANK",
        ),
        (train("  parameters: {path: [1]}"), "4:16: train.parameters.path", "variable PATH"),
        ("x-a: &a {gpus: 0}\n" + train("  <<: *a"), "5:3: train.<<", "are not merged"),
        (
            train("  horovod: {workers: 010}"),
            "4:13: train.horovod.workers",
            "8 for YAML 1.1 and 10",
        ),
        (train("  horovod: {workers: 1:30}"), "4:13: train.horovod.workers", "write 90"),
        (train("  horovod: {workers: 1_000}"), "4:13: train.horovod.workers", "write 1000"),
        (train("  resources: {gpus: 0x10}"), "4:15: train.resources.gpus", "write 16"),
        (train("  resources: {cpus: 1:30.5}"), "4:15: train.resources.cpus", "write 90.5"),
        (train("  resources: {cpus: 012.5}"), "4:15: train.resources.cpus", "write 12.5"),
        (train("  resources: {cpus: yes}"), "4:15: train.resources.cpus", "not True"),
        (train("  resources: {mem: 010}"), "4:15: train.resources.mem", "write the one you mean"),
        (train("  concurrency: 0b11"), "4:3: train.concurrency", "write 3"),
        (NEW + train("  restarts: 1:00"), "5:3: train.restarts", "write 60"),
        (NEW + train("  timeout: 010"), "5:3: train.timeout", "not a length of time"),
        (NEW + train("  timeout: 1:30"), "5:3: train.timeout", "not a length of time"),
        (train("  resources: {gpus: !!int ''}"), "4:21", "have no meaning here"),
        ("x-a: !!timestamp a\n" + train(), "1:6", "have no meaning here"),
        ("project: " + "[" * 100_000, "1:39", "more than 30 levels"),
        ("{a: " * 5000, "1:121", "more than 30 levels"),
        (train("  shell: bash -c"), "4:3: train.shell", "write 'version: 2'"),
        (NEW + train("  shell: bash"), "5:3: train.shell", "must end with the option for a line"),
        (NEW + train("  shell: bash '-c"), "5:3: train.shell", "cannot be read: No closing"),
        *(
            (
                f"project: p\ntrain:\n  run:\n  - a '{text}'\n  parameters: {{lr: [1]}}\n",
                "4:5: train.run[0]",
                f"{text} is no placeholder: write the name of a parameter alone, as in ",
            )
            for text in ("{{lr|int}}", "{{ lr.x }}", "{{{lr}}}", "${{ lr }}", "{{lr + 1}}")
        ),
        (
            train("  install: ['a {{ lr }}']", "  parameters: {lr: [1]}"),
            "4:13: train.install[0]",
            "{{lr}} has no value here",
        ),
        (
            NEW + train("  env: {A: 'x{{lr}}'}", "  parameters: {lr: [1]}"),
            "5:9: train.env.A",
            "{{lr}} has no value here",
        ),
        (train("  concurrency: 0"), "4:3: train.concurrency", "greater than or equal to 1"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, where: str, what: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"riseml.yml:{where}")
    assert what in problem


def test_all_mistakes_are_named_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        "project: 1\ntrain:\n  frmework: tensorflow\n  run: [a]\n  run: [b]\n"
        "  resources:\n    gpus: many\n    mem: lots\ndeploy: {}\n"
    )
    assert [each.split(":")[1] for each in found] == ["1", "3", "5", "7", "8", "9"]
    found = problems(train("  resources: {gpu: 1}").replace("python train.py", "'{{a}}'"))
    assert [each.split(":")[1] for each in found] == ["3", "4"]


PLANTED = """\
version: 3              # wrong
title: p                # wrong
repository: x           # wrong
train:
  framework: torch      # wrong
  tensorflow:
    release: 1.5.0      # wrong
    tensorboard: maybe  # wrong
    horovod:
      workrs: 32        # wrong
    horovod: {}         # wrong
    distributed:
      ps: 1             # wrong
  horovod:
    workers:
      count: 0          # wrong
      processes: none   # wrong
      per_host: 2       # wrong
  horovd: 2             # wrong
  image: 5              # wrong
  install: pip          # wrong
  resources:
    gpus: -1            # wrong
    gpu: 2              # wrong
    cpus: many          # wrong
    mem: 4 gigs         # wrong
  resources:            # wrong
    gpus: 4
  run:
  - python train.py
  - {command: a}        # wrong
  - cmd: ""             # wrong
  - python {{lr}}       # wrong
  - {cmd: a, on: one}   # wrong
  parameters:
    a b: [1]            # wrong
    rate: 0.1           # wrong
    n: []               # wrong
    m:
      range:            # wrong
        min: 1
        max: 2
  concurrency: 0        # wrong
  timeout: soon         # wrong
  restarts: often       # wrong
  metrics:
    loss: low           # wrong
"""


def test_thirty_planted_mistakes_are_found_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yml"
    path.write_text(PLANTED)
    wrong = {number for number, line in enumerate(PLANTED.splitlines(), 1) if "# wrong" in line}
    assert len(wrong) >= 30
    with pytest.raises(UsageError) as caught:
        manage(["validate", "-f", str(path)], lambda words: 1, io.StringIO())
    found = {
        int(each.removeprefix(f"{path}:").split(":")[0]) for each in str(caught.value).split("\n")
    }
    assert found == wrong


def test_what_version_2_adds() -> None:
    experiment = parsed(
        NEW + "project: p\ntrain:\n  framework: pytorch\n  timeout: 1.5m\n  restarts: 2\n"
        "  env: {A: 010}\n  metrics: {accuracy: max}\n  run:\n  - {cmd: pip install x, on: host}\n"
        "  - cmd: a\n  - b\n  horovod: {workers: 2}\n"
    )
    lines = (Line("pip install x", "host"), Line("a"), Line("b"))
    assert [run.lines for run in experiment.runs] == [lines]
    assert (experiment.timeout_s, experiment.file.train.env) == (90.0, {"A": "010"})
    assert experiment.warnings == ()
    assert parsed(experiment.canonical).file == experiment.file
    schema = Draft202012Validator(json_schema())
    schema.validate(json.loads(json.dumps(experiment.data)))


def test_numbers_that_mean_the_same_to_everybody_are_taken() -> None:
    text = train(
        "  horovod: {workers: 10}", "  resources: {gpus: 0, cpus: 1.50, mem: 0300Mi}",
        "  parameters: {a: [010, 1:30, 0x10, 1_0, yes, 2018-01-01]}",
    )  # fmt: skip
    experiment = parsed(text)
    assert (experiment.size, experiment.file.train.resources.cpus) == (10, 1.5)
    values = ["010", "1:30", "0x10", "1_0", "yes", "2018-01-01"]
    assert [run.parameters["a"] for run in experiment.runs] == values


def test_the_shell_is_that_of_ci_systems_or_another() -> None:
    assert parsed(train()).shell == ("bash", "-e", "-o", "pipefail", "-c")
    experiment = parsed(NEW + train("  shell: sh -e -c", "  install: [a, b]"))
    assert experiment.runs[0].lines[0].command == ("sh", "-e", "-c", "python train.py")
    assert parsed(experiment.canonical).file == experiment.file
    line = install_line(experiment.install, experiment.shell)
    assert line.command[-1].endswith("exec sh -e -c 'set -e\na\nb'")


def test_braces_of_other_programs_are_left_alone() -> None:
    text = "project: p\ntrain:\n  run:\n  - docker ps -f '{{.ID}} {{json .}}' ${lr} {{ lr }}\n"
    experiment = parsed(text + "  parameters: {lr: [a b]}\n")
    assert experiment.runs[0].lines[0].text == "docker ps -f '{{.ID}} {{json .}}' ${lr} 'a b'"


def test_what_is_doubtful_is_said() -> None:
    experiment = parsed(
        "project: p\ntrain:\n  run:\n  - cd data\n  - pip install x\n  - python {{lr}} $DECAY\n"
        "  horovod: {workers: 2}\n  parameters: {lr: [1], decay: [1], unused: [1]}\n"
        "  image: some/image\n  concurrency: 2\n"
    )
    said = {each.split(":")[1]: each for each in experiment.warnings}
    assert sorted(said) == ["4", "5", "8", "9"]
    assert "each line has its own shell" in said["4"]
    assert "every process runs this" in said["5"]
    assert "UNUSED" in said["8"]
    assert len(experiment.warnings) == 4


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"cannot read the job file /no/such\.yml"):
        read_job_file("/no/such.yml")


def test_what_is_deep_or_refers_to_itself_ends() -> None:
    assert any("levels" in each for each in problems("a: " + "[" * 60 + "]" * 60))
    assert any("recursive" in each for each in problems("x-l: &a [*a, *a]\n" + train()))


FILES = [*sorted((ROOT / "examples" / "jobs").glob("*.yml"))]


def test_the_schema_for_editors_takes_files_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert manage(["init"], lambda words: 1, io.StringIO()) == 0
    schema = Draft202012Validator(json_schema())
    schema.check_schema(schema.schema)
    texts = [Path("riseml.yml").read_text(), RISEML, *(file.read_text() for file in FILES)]
    assert len(texts) == 5
    for text in texts:
        # As YAML 1.2 of editors, in which "on" is a word.
        schema.validate(load(text, lambda path: False).data)
        schema.validate(json.loads(json.dumps(parsed(text).data)))
    for wrong in ("  horovod: {workers: 0}", "  resources: {gpu: 1}", "  parameters: {lr: []}"):
        assert not schema.is_valid(yaml.safe_load(train(wrong)))


def test_the_project_is_known_whatever_else_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "job.yml"
    path.write_text("project: p\ntrain: {}\n")
    assert project_of(str(path)) == "p"
    path.write_text("project: ../p\n")
    with pytest.raises(UsageError, match="names no project"):
        project_of(str(path))
