"""Finding an MPI library, and what is said if it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod.config import Config
from horovod.errors import StartError
from horovod.mpi import ProcessMpi, find_library, library_candidates

if TYPE_CHECKING:
    from pathlib import Path


def test_what_the_user_names_is_the_only_candidate() -> None:
    assert library_candidates("/opt/mpi/libmpi_abi.so") == ["/opt/mpi/libmpi_abi.so"]


def test_a_library_beside_mpirun_is_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.touch(mode=0o755)
    library = tmp_path / "lib" / "libmpi_abi.so.1"
    library.touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    candidates = library_candidates()
    assert str(library) in candidates
    assert "libmpi_abi.so.1" in candidates


def test_a_library_that_is_none_is_not_found(tmp_path: Path) -> None:
    empty = tmp_path / "libmpi_abi.so"
    empty.touch()
    assert find_library(str(empty)) is None


def test_without_a_library_the_way_out_is_told() -> None:
    config = Config(cpu_operations="mpi", mpi_library="/no/such/libmpi_abi.so")
    with pytest.raises(StartError, match=r"/no/such/libmpi_abi\.so: .*\n?.*pip install mpich"):
        ProcessMpi().begin(config)


def test_what_never_began_ends_in_silence() -> None:
    mpi = ProcessMpi()
    assert not mpi.all_threads
    mpi.finish()
    mpi.abandon()
