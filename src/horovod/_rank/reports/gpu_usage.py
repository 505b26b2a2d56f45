"""Reads how much the GPUs of this process are used, if it uses any.

The framework has loaded NVIDIA's driver by then, and has made the primary context of each GPU that
it uses. So the driver knows which GPUs these are, also in containers; NVML knows their use.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_DRIVER, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_BUS_ID_BYTES = 32
LOOK_AGAIN_S = 10.0


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuUsage:
    """The GPUs that this process uses.

    Args:
        open_library: loads a library, with a mode as of :class:`ctypes.CDLL`.
        look_again_s: after how many seconds without a GPU to look for one again, as a search costs
            a third of a millisecond.
    """

    def __init__(
        self, open_library: Callable[..., Any] = ctypes.CDLL, look_again_s: float = LOOK_AGAIN_S
    ) -> None:
        self._open_library = open_library
        self._look_again_s = look_again_s
        self._nvml: Any = None
        self._is_missing = False
        self._look_at = 0.0

    def read(self) -> dict[str, int]:
        """Return what NVML says of them now.

        Returns:
            ``gpu_memory_bytes`` in use and ``gpu_total_bytes``, of all of them together and by all
            processes, and ``gpu_percent`` of the last second or less in which the busiest one
            computed; nothing if this process uses no GPU, or there is no NVML.
        """
        if self._look_at > time.monotonic():
            return {}
        driver = self._loaded_driver()
        bus_ids = [] if driver is None else _used_gpus(driver)
        if not bus_ids or not self._opens_nvml():
            self._look_at = time.monotonic() + self._look_again_s
            return {}
        used, total, percent = 0, 0, 0
        for bus_id in bus_ids:
            device, memory, busy = ctypes.c_void_p(), _Memory(), _Utilization()
            if self._nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(device)) != 0:
                continue
            if self._nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0:
                used, total = used + memory.used, total + memory.total
            if self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy)) == 0:
                percent = max(percent, min(100, busy.gpu))
        if not total:
            return {}
        return {"gpu_memory_bytes": used, "gpu_total_bytes": total, "gpu_percent": percent}

    def close(self) -> None:
        """Let go of NVML; idempotent."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _loaded_driver(self) -> Any:
        """Return the driver if this process has loaded it, otherwise None."""
        with suppress(OSError):
            return self._open_library(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return None

    def _opens_nvml(self) -> bool:
        if self._nvml is None and not self._is_missing:
            self._is_missing = True
            with suppress(OSError):
                nvml = self._open_library(_NVML)
                if nvml.nvmlInit_v2() == 0:
                    self._nvml, self._is_missing = nvml, False
        return self._nvml is not None


def _used_gpus(driver: Any) -> list[bytes]:
    """Return the addresses of the GPUs on which this process has a context."""
    count, found = ctypes.c_int(), []
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    for index in range(count.value):
        device, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
        if (
            driver.cuDeviceGet(ctypes.byref(device), index) == 0
            and driver.cuDevicePrimaryCtxGetState(
                device, ctypes.byref(flags), ctypes.byref(is_active)
            )
            == 0
            and is_active.value
            and driver.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device) == 0
        ):
            found.append(bus_id.value)
    return found
