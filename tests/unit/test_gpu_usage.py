"""The use of GPUs, from libraries in place of the driver and of NVML."""

from __future__ import annotations

import ctypes
from typing import Any

from horovod._rank.reports.gpu_usage import GpuUsage

MIB = 1 << 20


class Driver:
    """Four GPUs; this process has a context on some."""

    def __init__(self, *used: int) -> None:
        self.used = used

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 4
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, is_active: Any) -> int:
        is_active._obj.value = int(device.value in self.used)
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: Any) -> int:
        text.value = f"0000:{device.value:02d}:00.0".encode()
        return 0


class Nvml:
    """Knows all GPUs of the host; of one it does not tell how busy it is."""

    def __init__(self, problem: int = 0) -> None:
        self.problem = problem
        self.num_open = 0

    def nvmlInit_v2(self) -> int:
        self.num_open += 1
        return self.problem

    def nvmlShutdown(self) -> int:
        self.num_open -= 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, device: Any) -> int:
        device._obj.value = int(bus_id[5:7]) + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = device.value * MIB, 100 * MIB
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, busy: Any) -> int:
        busy._obj.gpu = 10 * device.value
        return 3 if device.value == 4 else 0


class Libraries:
    """What this process can load."""

    def __init__(self, **found: object) -> None:
        self.found = found

    def __call__(self, name: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
        library = self.found.get("driver" if "cuda" in name else "nvml")
        if library is None:
            raise OSError(name)
        return library


def test_only_the_gpus_with_a_context_count() -> None:
    nvml = Nvml()
    usage = GpuUsage(Libraries(driver=Driver(1, 3), nvml=nvml))
    for _ in range(3):
        assert usage.read() == {
            "gpu_memory_bytes": 6 * MIB, "gpu_total_bytes": 200 * MIB, "gpu_percent": 20,
        }  # fmt: skip
    assert nvml.num_open == 1
    usage.close()
    usage.close()
    assert nvml.num_open == 0


def test_without_gpus_there_is_nothing() -> None:
    assert GpuUsage(Libraries()).read() == {}
    assert GpuUsage(Libraries(driver=Driver())).read() == {}
    assert GpuUsage(Libraries(driver=Driver(0))).read() == {}
    broken = Nvml(problem=9)
    usage = GpuUsage(Libraries(driver=Driver(0), nvml=broken), 0.0)
    assert [usage.read(), usage.read()] == [{}, {}]
    assert broken.num_open == 1


def test_a_gpu_that_comes_later_is_found_but_not_looked_for_all_the_time() -> None:
    libraries = Libraries()
    patient, eager = GpuUsage(libraries, 3600.0), GpuUsage(libraries, 0.0)
    assert patient.read() == eager.read() == {}
    libraries.found = {"driver": Driver(0), "nvml": Nvml()}
    assert patient.read() == {}
    assert eager.read()["gpu_total_bytes"] == 100 * MIB


def test_this_process_has_loaded_no_driver() -> None:
    assert GpuUsage().read() == {}
