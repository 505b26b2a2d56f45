"""The variables of PyTorch that a rank writes itself."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from horovod._rank.torch_place import TorchPlace
from horovod._settings.config import Config
from horovod._settings.foreign_launchers import ForeignLauncher

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PLACE = Config(rank=0, size=3, local_rank=0, local_size=2)
OTHER = Config(rank=2, size=3, local_rank=1, local_size=2)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # restored at the end, whoever wrote it


@pytest.fixture
def place() -> Iterator[TorchPlace]:
    with closing(TorchPlace()) as place:
        yield place


def seen() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in NAMES)


def test_each_meeting_writes_another_place_and_port(place: TorchPlace) -> None:
    first = place.offer_port(PLACE)
    place.write(PLACE, "10.0.0.1", first)
    assert seen() == ("0", "3", "0", "2", "10.0.0.1", str(first))
    with socket.create_server(("127.0.0.1", first)):  # the store of the group made there
        second = place.offer_port(PLACE)
        assert second not in (0, first)
    alone = Config(rank=0, size=1, elastic=True)
    place.write(alone, "127.0.0.1", second)
    assert seen() == ("0", "1", "0", "1", "127.0.0.1", str(second))


def test_only_rank_0_reserves_and_all_write(place: TorchPlace) -> None:
    assert place.offer_port(OTHER) == 0
    place.write(OTHER, "10.0.0.1", 29)
    assert seen() == ("2", "3", "1", "2", "10.0.0.1", "29")


@pytest.mark.parametrize("name", NAMES[:4])
def test_variables_of_a_launcher_stay(
    place: TorchPlace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    before = seen()
    assert place.offer_port(PLACE) == 0
    place.write(PLACE, "10.0.0.1", 29)
    assert seen() == before


def test_a_place_that_the_program_has_changed_is_its_own(place: TorchPlace) -> None:
    place.write(OTHER, "10.0.0.1", 29)
    os.environ["RANK"] = "7"
    place.write(PLACE, "10.0.0.1", 30)
    assert seen() == ("7", "3", "1", "2", "10.0.0.1", "29")


def test_an_address_of_the_user_stays(place: TorchPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-7")
    for port in (29, 30):
        place.write(OTHER, "10.0.0.1", port)
        assert seen() == ("2", "3", "1", "2", "node-7", str(port))


@pytest.mark.parametrize(
    "config", [Config(), Config(rank=0, size=2, is_lent=True)], ids=["alone", "lent"]
)
def test_a_job_that_no_launcher_describes_writes_nothing(place: TorchPlace, config: Config) -> None:
    assert place.offer_port(config) == 0
    place.write(config, "10.0.0.1", 29)
    assert not any(seen())


def test_a_foreign_launcher_of_one_rank_counts(place: TorchPlace) -> None:
    config = Config(foreign_launcher=ForeignLauncher("Open MPI"))
    place.write(config, "127.0.0.1", place.offer_port(config))
    assert seen()[:2] == ("0", "1")
