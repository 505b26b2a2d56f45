"""The names under which tasks of Spark join a job."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import horovod
from horovod.runner.placing.hosts import is_host_name
from horovod.runner.protocol.joining import JOIN, HostMessage
from horovod.spark.tasks import index_of, name_of


@pytest.mark.parametrize(
    ("detail", "name"),
    [
        ("executor-192.0.2.7:4321", "a-b-task12.executor-192.0.2.7-4321"),
        ("executor-[2001:db8::1]:4321", "a-b-task12.executor-2001-db8-1-4321"),
        ("executor-w-task1.example:4321", "a-b-task12.executor-w-task1.example-4321"),
        ("0", "a-b-task12.0"),
    ],
)
def test_a_job_takes_the_name_of_a_task_for_that_of_a_host(detail: str, name: str) -> None:
    assert name_of("a-task-b", 12, detail) == name
    assert is_host_name(name)
    assert index_of(name) == 12
    word = HostMessage(JOIN, "visit", name, 1, horovod.__version__)
    assert HostMessage.from_json(word.to_json()) == word
