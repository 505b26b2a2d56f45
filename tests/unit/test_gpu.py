"""Where the libraries of GPUs are looked for, and what is said of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from horovod._rank.libraries import gpu
from horovod._settings.config import Config
from horovod.errors import StartError
from horovod.runner.doctor.examination import examine_libraries

if TYPE_CHECKING:
    from pathlib import Path


def test_what_the_user_names_is_the_only_candidate() -> None:
    assert gpu.driver_candidates("/opt/libcuda.so") == ["/opt/libcuda.so"]
    assert gpu.nccl_candidates("/opt/libnccl.so") == ["/opt/libnccl.so"]


def test_nccl_of_a_wheel_comes_before_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    candidates = gpu.nccl_candidates()
    assert candidates[0] == str(library)
    assert "libnccl.so.2" in candidates
    assert "nvidia.nccl" not in sys.modules


def test_nccl_of_a_prefix_is_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    assert gpu.nccl_candidates()[0] == str(library)


def test_amd_comes_after_nvidia() -> None:
    drivers, libraries = gpu.driver_candidates(), gpu.nccl_candidates()
    assert drivers.index("libcuda.so.1") < drivers.index("libamdhip64.so.6")
    assert libraries.index("libnccl.so.2") < libraries.index("librccl.so.1")


def test_a_search_in_vain_tells_each_path(tmp_path: Path) -> None:
    broken = tmp_path / "libnccl.so.2"
    broken.write_text("not a library")
    search = gpu.find_nccl(str(broken))
    assert search.found is None
    assert str(broken) in search.problem
    missing = gpu.find_driver("/no/such/libcuda.so.1")
    assert missing.found is None
    assert "/no/such/libcuda.so.1" in missing.problem


@pytest.mark.parametrize(
    ("version", "path", "title"),
    [
        (22907, "/lib/libnccl.so.2", "NCCL 2.29.7"),
        (2804, "/lib/libnccl.so.2", "NCCL 2.8.4"),
        (22105, "/opt/rocm/lib/librccl.so.1", "RCCL 2.21.5"),
    ],
)
def test_versions_are_told_as_users_know_them(version: int, path: str, title: str) -> None:
    assert gpu.Nccl(path, version, "").title == title


def test_settings_reach_the_engine() -> None:
    config = Config.from_env(
        {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_LIBRARY": "/opt/libcuda.so",
            "HOROVOD_NCCL_LIBRARY": "/opt/libnccl.so",
            "HOROVOD_GPU_CHUNK_SIZE": "65536",
            "HOROVOD_GPU_PINNED_SIZE": "1048576",
        }
    )
    assert config.gpu_operations == "nccl"
    assert (config.gpu_chunk_bytes, config.gpu_pinned_bytes) == (65536, 1048576)
    assert gpu.options(config) is not None


def test_words_of_old_images_are_refused_with_the_way_out() -> None:
    with pytest.raises(StartError, match=r"HOROVOD_GPU_OPERATIONS='MPI'.*auto, nccl or staged"):
        Config.from_env({"HOROVOD_GPU_OPERATIONS": "MPI"})


def test_the_doctor_looks_only_if_it_matters() -> None:
    assert examine_libraries({"HOROVOD_TIMELINE": "x"}) == []
    missing = "/no/such/libcuda.so.1"
    (remark,) = examine_libraries(
        {"HOROVOD_GPU_OPERATIONS": "staged", "HOROVOD_CUDA_LIBRARY": missing}
    )
    assert str(remark).startswith("this host: fails: HOROVOD_CUDA_LIBRARY: ")
    assert missing in str(remark)


def test_the_doctor_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = gpu.Driver("/lib/libcuda.so.1", 12080, 1)
    nccl = gpu.Nccl("/lib/libnccl.so.2", 22703, "is known to hang")
    monkeypatch.setattr(gpu, "find_driver", lambda given: gpu.Search(driver, ""))
    monkeypatch.setattr(gpu, "find_nccl", lambda given: gpu.Search(nccl, ""))
    said = [str(remark) for remark in examine_libraries({"HOROVOD_GPU_OPERATIONS": "nccl"})]
    assert said == [
        "this host: honored: CUDA 12.8 is /lib/libcuda.so.1",
        "this host: changed: NCCL 2.27.3 is /lib/libnccl.so.2 (is known to hang)",
    ]
