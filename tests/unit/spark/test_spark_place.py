"""Which host or container a process is on."""

from __future__ import annotations

import re
import socket

import pytest

pytest.importorskip("pyspark")

from horovod.spark.common.place import host_hash, is_databricks


def test_the_hash_of_a_host_is_stable_and_salted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = re.escape(socket.gethostname().split(".")[0])
    assert re.fullmatch(rf"{name}-[0-9a-f]{{32}}", host_hash())
    assert host_hash() == host_hash()
    assert len({host_hash(), host_hash("salt"), host_hash("other")}) == 3
    outside = host_hash()
    monkeypatch.setenv("CONTAINER_ID", "container_1")
    assert host_hash() != outside


def test_databricks_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    assert not is_databricks()
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "")
    assert is_databricks()
