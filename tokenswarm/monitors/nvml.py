"""GPUs of this host through NVML, field by field. (no locust)"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a deprecated twin package of the same name warns on import
    import pynvml

REASONS = {  # bit: its name; the constants were renamed from nvmlClocksThrottleReason* to nvmlClocksEventReason*
    0x1: "GpuIdle", 0x2: "ApplicationsClocksSetting", 0x4: "SwPowerCap", 0x8: "HwSlowdown", 0x10: "SyncBoost",
    0x20: "SwThermalSlowdown", 0x40: "HwThermalSlowdown", 0x80: "HwPowerBrakeSlowdown", 0x100: "DisplayClockSetting",
}  # fmt: skip
LOST = {15, 16}  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
NOT_SUPPORTED, NO_FUNCTION = 3, 13
MIB = 2**20
Row = tuple[str, str, float]


def reasons(mask: int) -> list[str]:
    """Names of the bits of a throttle (event) reasons mask, by number."""
    known = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return known + ([f"0x{rest:x}"] if rest else [])


def choose(text: str | None, uuids: list[str]) -> list[int | str]:
    """What `0,2` or `GPU-5f3c,MIG-ab` means, as CUDA_VISIBLE_DEVICES would: order kept, an end at the first that is
    not there. None: every GPU. A MIG device comes back as its UUID, for NVML to find."""
    if text is None:
        return list(range(len(uuids)))
    chosen: list[int | str] = []
    for word in (word.strip() for word in text.split(",")):
        if word.startswith("MIG-"):
            chosen.append(word)
            continue
        near = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if word.isdigit() and int(word) < len(uuids):
            chosen.append(int(word))
        elif len(near) == 1:
            chosen.append(near[0])
        else:
            break
    return chosen


def text_of(value: Any) -> str:
    """A name as NVML gives it: text, or bytes in older bindings, perhaps broken."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Device:
    """One GPU: asked field by field, so that what it cannot tell stays blank and the rest is kept."""

    def __init__(self, handle: Any, index: int | str, say: Callable[[str], None]) -> None:
        self.handle, self.say = handle, say
        self.silent: set[str] = set()  # fields that this GPU does not have
        self.said: set[str] = set()
        self.lost = False
        self.memory: Callable[[], Any] | None = None
        self.facts: dict[str, Any] = {"index": index, "name": "", "uuid": "", "bus": "", "memory_api": ""}
        for fact, call in (("name", pynvml.nvmlDeviceGetName), ("uuid", pynvml.nvmlDeviceGetUUID),
                           ("bus", lambda h: pynvml.nvmlDeviceGetPciInfo(h).busId)):  # fmt: skip
            try:
                self.facts[fact] = text_of(call(handle))
            except (pynvml.NVMLError, ValueError, AttributeError) as error:
                self.say(f"GPU {index}: its {fact} cannot be read ({error})")
        self.source = "|".join([f"gpu{index}", self.facts["uuid"], self.facts["bus"]]).replace(",", " ").rstrip("|")
        self.last: list[Row] = []

    def sample(self) -> list[Row]:
        """All fields that it tells now."""
        self.lost = False
        values = {name: value for name, read in FIELDS if (value := self._field(name, read)) is not None}
        used_total = self._field("memory", Device._memory)
        if used_total and used_total[1] > 0:
            values["mem_used_mib"], values["mem_total_mib"] = used_total[0] / MIB, used_total[1] / MIB
        elif used_total:  # Jetson: every call succeeds and says 0
            self._once("zeros", "answers 0 for all: taken as unknown")
            values = {name: value for name, value in values.items() if value}
        rows: list[Row] = [(self.source, name, value) for name, value in values.items()]
        if self.lost:
            rows = [(self.source, "lost", 1.0)]
        self.last = rows + (self._field("processes", Device._processes) or [])
        return self.last

    def _field(self, name: str, read: Callable[[Device], Any]) -> Any:
        if name in self.silent or self.lost:
            return None
        try:
            return read(self)
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in LOST:
                self.lost = True
                self._once("lost", f"is lost ({error}) since {time.strftime('%H:%M:%S', time.gmtime())} UTC")
            elif code in (NOT_SUPPORTED, NO_FUNCTION):
                self.silent.add(name)
                self._once(name, f"does not tell {name} ({error}): left blank")
            else:
                self._once(name, f"{name}: {error}")
        except (ValueError, TypeError, AttributeError) as error:
            self._once(name, f"{name} cannot be read ({error}): left blank")
        return None

    def _once(self, key: str, text: str) -> None:
        if key not in self.said:
            self.said.add(key)
            self.say(f"GPU {self.facts['index']} {text}")

    def _memory(self) -> tuple[float, float]:
        """(used, total) bytes, by one call for the whole run: v2 keeps the driver's own share apart, v1 does not."""
        if self.memory is None:
            self.memory = self._memory_call()
        got = self.memory()
        return float(got.used), float(got.total)

    def _memory_call(self) -> Callable[[], Any]:
        try:
            pynvml.nvmlDeviceGetMemoryInfo(self.handle, version=pynvml.nvmlMemory_v2)
        except (pynvml.NVMLError, AttributeError, TypeError):
            pynvml.nvmlDeviceGetMemoryInfo(self.handle)
            self.facts["memory_api"] = "v1"
            return lambda: pynvml.nvmlDeviceGetMemoryInfo(self.handle)
        self.facts["memory_api"] = "v2"
        return lambda: pynvml.nvmlDeviceGetMemoryInfo(self.handle, version=pynvml.nvmlMemory_v2)

    def _processes(self) -> list[Row]:
        """Memory of each process on this GPU: metric `process PID USER NAME`."""
        rows: list[Row] = []
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self.handle):
            if process.usedGpuMemory is not None:
                rows.append((self.source, f"process {process.pid} {owner(process.pid)}", process.usedGpuMemory / MIB))
        return rows


def owner(pid: int) -> str:
    """`user name` of a process; `? ?` where we may not know it."""
    try:
        process = psutil.Process(pid)
        words = f"{process.username()} {process.name()}"
    except (psutil.Error, KeyError):
        return "? ?"
    return " ".join(words.replace(",", " ").split())


def _power_limit(device: Device) -> float:
    try:
        return pynvml.nvmlDeviceGetEnforcedPowerLimit(device.handle) / 1000
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) in LOST:
            raise
        return pynvml.nvmlDeviceGetPowerManagementLimit(device.handle) / 1000


def _throttle(device: Device) -> float:
    """The mask; asked under its new name, then under its old one."""
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    calls = [getattr(pynvml, name) for name in names if hasattr(pynvml, name)]
    try:
        return float(calls[0](device.handle))
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) != NO_FUNCTION or len(calls) < 2:
            raise
        return float(calls[1](device.handle))


def _pcie(counter: int) -> Callable[[Device], float]:
    return lambda device: pynvml.nvmlDeviceGetPcieThroughput(device.handle, counter) / 1024  # KB/s


FIELDS: list[tuple[str, Callable[[Device], float]]] = [
    ("util_pct", lambda d: float(pynvml.nvmlDeviceGetUtilizationRates(d.handle).gpu)),
    ("power_w", lambda d: pynvml.nvmlDeviceGetPowerUsage(d.handle) / 1000),
    ("power_limit_w", _power_limit),
    ("temp_c", lambda d: float(pynvml.nvmlDeviceGetTemperature(d.handle, pynvml.NVML_TEMPERATURE_GPU))),
    ("sm_mhz", lambda d: float(pynvml.nvmlDeviceGetClockInfo(d.handle, pynvml.NVML_CLOCK_SM))),
    ("mem_mhz", lambda d: float(pynvml.nvmlDeviceGetClockInfo(d.handle, pynvml.NVML_CLOCK_MEM))),
    ("throttle", _throttle),
    ("pcie_tx_mib_s", _pcie(pynvml.NVML_PCIE_UTIL_TX_BYTES)),
    ("pcie_rx_mib_s", _pcie(pynvml.NVML_PCIE_UTIL_RX_BYTES)),
    ("pcie_gen", lambda d: float(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(d.handle))),
    ("pcie_width", lambda d: float(pynvml.nvmlDeviceGetCurrPcieLinkWidth(d.handle))),
]


def open_devices(text: str | None, say: Callable[[str], None]) -> list[Device]:
    """The GPUs of this host, those that `text` names (choose); none, with one line, where NVML does not work."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except (pynvml.NVMLError, OSError, AttributeError) as error:
        say(f"no GPU is watched on this host: NVML says {error}")
        return []
    found: list[Device] = []
    for index in range(count):
        try:
            found.append(Device(pynvml.nvmlDeviceGetHandleByIndex(index), index, say))
        except pynvml.NVMLError as error:
            say(f"GPU {index} cannot be opened ({error})")
    wanted: list[Device] = []
    for word in choose(text, [device.facts["uuid"] for device in found]):
        try:
            by_uuid = isinstance(word, str)
            wanted.append(Device(pynvml.nvmlDeviceGetHandleByUUID(word), word, say) if by_uuid else found[int(word)])
        except pynvml.NVMLError as error:
            say(f"{word} is not there ({error})")
    if not wanted:
        say("no GPU is watched on this host: " + (f"none is {text!r}" if count else "NVML counts none"))
    return wanted
