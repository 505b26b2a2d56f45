"""Finding an MPI library, and what is said if it cannot be used."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from told import told

from horovod._rank.libraries.mpi import ProcessMpi, find_library, library_candidates
from horovod._settings.config import Config
from horovod.errors import StartError

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
    mpi.finish(failed=False)
    mpi.abandon()


class LateMpi:
    """Takes the place of the native process: other ranks come to MPI_Finalize, or never."""

    path, version, rank, size = "libmpi_abi.so", "of this test", 1, 2

    def __init__(self, *arguments: object) -> None:
        self.turns_left = 3

    def given_up(self) -> None:
        return None

    def wait(self, timeout_s: float) -> bool:
        return True

    def finish(self, timeout_s: float) -> bool:
        self.turns_left -= 1
        return self.turns_left == 0


@pytest.fixture
def late_mpi(monkeypatch: pytest.MonkeyPatch) -> ProcessMpi:
    monkeypatch.setattr("horovod._native.MpiProcess", LateMpi)
    monkeypatch.setattr("horovod._rank.libraries.mpi._FINISH_TIMEOUT_S", 0.0)
    mpi = ProcessMpi()
    mpi.begin(Config(rank=1, size=2))
    return mpi


def test_a_rank_that_is_done_waits_for_those_that_are_not(late_mpi: ProcessMpi) -> None:
    native = late_mpi._process
    with told("rank 1: .* other ranks still run"):
        late_mpi.finish(failed=False)
    assert isinstance(native, LateMpi)
    assert native.turns_left == 0


def test_a_rank_that_failed_does_not_wait_for_ever(late_mpi: ProcessMpi) -> None:
    with told("rank 1: MPI_Finalize did not return within 0 s; the"):
        late_mpi.finish(failed=True)


def test_whether_a_library_of_mpi_is_initialized_is_asked_of_it(tmp_path: Path) -> None:
    script = (
        "import ctypes, sys; from horovod._rank.libraries.mpi import was_initialized; "
        "before = was_initialized(); library = ctypes.CDLL(sys.argv[1]); "
        "loaded = was_initialized(); library.begin(); print(before, loaded, was_initialized())"
    )
    source = tmp_path / "mpi.c"
    source.write_text(
        "static int flag; void begin(void) { flag = 1; }\n"
        "int MPI_Initialized(int* answer) { *answer = flag; return 0; }\n"
    )
    library = tmp_path / "libmpi_of_test.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    words = [sys.executable, "-c", script, str(library)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
