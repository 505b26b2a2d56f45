"""A job file as manifests for Kubernetes, alone or with the operators of Kubeflow. Pure.

What is written names no secret: pods take it from a Secret that is made once.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from horovod.errors import UsageError
from horovod.runner.experiment.schema import mebibytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment

PORT = 29400
# Pods of one job may start minutes apart.
PATIENCE_S = 600
_EXPANDED = re.compile(r"\$(?=[$(])")
# Of names in Kubernetes.
_MOST_CHARACTERS = 52


@dataclass(frozen=True)
class Wishes:
    """Options of the command line that complete the file.

    Attributes:
        image: in place of that of the file; empty for none.
        output_claim, data_claim: volume claims for /output and /data; empty for none.
    """

    image: str = ""
    output_claim: str = ""
    data_claim: str = ""


def index_job(experiment: Experiment, wishes: Wishes) -> str:
    """A Job with an index for each worker, and a Service by which the first one is found."""

    def documents(run: Run, name: str) -> list[dict[str, Any]]:
        places = _places("$JOB_COMPLETION_INDEX", f"{name}-0.{name}")
        pod = _pod(experiment, run, name, wishes, places + _script(experiment, run))
        pod["spec"]["subdomain"] = name
        job = {
            "completions": experiment.workers,
            "parallelism": experiment.workers,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            **_deadline(experiment),
            "template": pod,
        }
        service = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
        }
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": service,
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": job,
            },
        ]

    return _manifests(experiment, documents)


def train_job(experiment: Experiment, wishes: Wishes) -> str:
    """A TrainJob of Kubeflow Trainer, whose runtime for torchrun tells the nodes their ranks."""

    def documents(run: Run, name: str) -> list[dict[str, Any]]:
        places = _places("$PET_NODE_RANK", "$PET_MASTER_ADDR")
        trainer = {
            "image": _image(experiment, wishes),
            "command": ["sh", "-c"],
            "args": [_unexpanded(places + _script(experiment, run))],
            "numNodes": experiment.workers,
            "numProcPerNode": experiment.processes,
            "resourcesPerNode": _resources(experiment),
            "env": _environment(experiment, run, name),
        }
        return [
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": {"name": name},
                "spec": {
                    "runtimeRef": {"name": "torch-distributed"},
                    **_deadline(experiment),
                    "trainer": trainer,
                },
            }
        ]

    return _manifests(experiment, documents)


def mpi_job(experiment: Experiment, wishes: Wishes) -> str:
    """An MPIJob, whose launcher runs horovodrun on the hosts that the operator lists."""

    def documents(run: Run, name: str) -> list[dict[str, Any]]:
        steps = [
            f"horovodrun -np {experiment.size} --hostfile /etc/mpi/hostfile"
            f" {shlex.join(line.command)}"
            for line in run.lines
        ]
        launcher = _pod(experiment, run, name, wishes, "\n".join(["set -e", *steps]))
        del launcher["spec"]["containers"][0]["resources"]  # it computes nothing
        serves = "\n".join([*_begin(experiment), "exec /usr/sbin/sshd -De"])
        worker = _pod(experiment, run, name, wishes, serves)
        replicas = {
            "Launcher": {"replicas": 1, "template": launcher},
            "Worker": {"replicas": experiment.workers, "template": worker},
        }
        spec = {
            "slotsPerWorker": experiment.processes,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                **_deadline(experiment),
            },
            "mpiReplicaSpecs": replicas,
        }
        return [
            {
                "apiVersion": "kubeflow.org/v2beta1",
                "kind": "MPIJob",
                "metadata": {"name": name},
                "spec": spec,
            }
        ]

    return _manifests(experiment, documents)


def _manifests(
    experiment: Experiment, documents: Callable[[Run, str], list[dict[str, Any]]]
) -> str:
    base = _name_of(experiment.file.project)
    runs = experiment.runs
    found = []
    for number, run in enumerate(runs, 1):
        name = f"{base}-{number}" if len(runs) > 1 else base
        found += documents(run, name)
    head = [
        f"# {experiment.path}: {len(runs)} run(s) of {experiment.workers} worker(s) with "
        f"{experiment.processes} process(es)",
        "# The secret with which ranks prove that they belong to the job, once:",
        f"#   kubectl create secret generic {base}-horovod "
        '--from-literal=key="$(openssl rand -hex 32)"',
    ]
    if len(runs) > 1:
        head.append("# All runs begin when this is applied: a queue such as Kueue bounds them.")
    text = yaml.dump_all(found, Dumper=_Dumper, sort_keys=False, width=10_000)
    return "\n".join([*head, str(text)])


def _pod(
    experiment: Experiment, run: Run, name: str, wishes: Wishes, script: str
) -> dict[str, Any]:
    claims = {"output": wishes.output_claim, "data": wishes.data_claim}
    volumes = [
        {
            "name": volume,
            **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}),
        }
        for volume, claim in claims.items()
        if claim or volume == "output"
    ]
    container = {
        "name": "worker",
        "image": _image(experiment, wishes),
        "command": ["sh", "-c"],
        "args": [_unexpanded(script)],
        "env": _environment(experiment, run, name),
        "resources": _resources(experiment),
        "volumeMounts": [
            {
                "name": each["name"],
                "mountPath": f"/{each['name']}",
                **({"readOnly": True} if each["name"] == "data" else {}),
            }
            for each in volumes
        ],
    }
    return {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes}}


def _places(node_rank: str, address: str) -> str:
    """Return the shell line that sets a worker's number and the rendezvous address."""
    return f': "${{NODE_RANK:={node_rank}}}" "${{RENDEZVOUS:={address}:{PORT}}}"\n'


def _script(experiment: Experiment, run: Run) -> str:
    """Return the script of each worker, which launches all workers for each line."""
    launch = (
        f"horovodrun -np {experiment.size} --num-nodes {experiment.workers}"
        ' --node-rank "$NODE_RANK" --rendezvous "$RENDEZVOUS"'
        f" --start-timeout {PATIENCE_S} "
    )
    return "\n".join(
        [*_begin(experiment), *(launch + shlex.join(line.command) for line in run.lines)]
    )


def _begin(experiment: Experiment) -> list[str]:
    """For any sh; what is installed has the shell of the lines."""
    installing = "\n".join(["set -e", *experiment.install])
    begin = ["set -e", 'mkdir -p "$OUTPUT_DIR"']
    return [*begin, shlex.join([*experiment.shell, installing])] if experiment.install else begin


def _environment(experiment: Experiment, run: Run, name: str) -> list[dict[str, Any]]:
    key = {"name": f"{_name_of(experiment.file.project)}-horovod", "key": "key"}
    variables = {"OUTPUT_DIR": f"/output/{name}", "EXPERIMENT_ID": name, **run.variables}
    if experiment.threads is not None:
        variables["OMP_NUM_THREADS"] = str(experiment.threads)
    variables |= experiment.file.train.env
    return [
        {"name": "HOROVOD_SECRET_KEY", "valueFrom": {"secretKeyRef": key}},
        *({"name": each, "value": _unexpanded(text)} for each, text in variables.items()),
    ]


def _unexpanded(text: str) -> str:
    """Escape text for Kubernetes, which expands $(NAME) as a variable and $$ to one $."""
    return _EXPANDED.sub("$$", text)


def _deadline(experiment: Experiment) -> dict[str, int]:
    timeout_s = experiment.timeout_s
    return {} if timeout_s is None else {"activeDeadlineSeconds": math.ceil(timeout_s)}


def _resources(experiment: Experiment) -> dict[str, Any]:
    """A GPU has a limit; CPUs and memory are guaranteed, and may be more."""
    resources = experiment.file.train.resources
    requests: dict[str, Any] = {}
    if resources.cpus is not None:
        requests["cpu"] = f"{resources.cpus:g}"
    if resources.mem is not None:
        requests["memory"] = f"{mebibytes(resources.mem)}Mi"
    if not resources.gpus:
        return {"requests": requests} if requests else {}
    gpus = {"nvidia.com/gpu": resources.gpus}
    return {"requests": requests | gpus, "limits": gpus}


def _image(experiment: Experiment, wishes: Wishes) -> str:
    image = experiment.file.train.image
    found = wishes.image or (image if isinstance(image, str) else image.name if image else "")
    if not found:
        raise UsageError(
            f"{experiment.path} names no image: write train.image, or give --image; it needs "
            f"{experiment.shell[0]}, horovodrun and what the lines run"
        )
    return found


def _name_of(project: str) -> str:
    """A name as Kubernetes allows: small letters, digits and dashes, beginning with a letter."""
    name = "".join(each if each.isalnum() and each.isascii() else "-" for each in project.lower())
    name = name if name[:1].isalpha() else f"job-{name}"
    return name[:_MOST_CHARACTERS].strip("-")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
