"""NVML through the real pynvml on a stand-in library built here, driven by the cases; the agent's page read back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pynvml
import pytest
from shell import ROOT

from tokenswarm.monitors import dcgm, prometheus
from tokenswarm.monitors import nvml as gpu

HERE = Path(__file__).parent
CASES = HERE / "cases/nvml"
CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler (cc) to build the stand-in for libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with old/ and new/libnvidia-ml.so.1: before and after the throttle reasons were renamed."""
    folder = tmp_path_factory.mktemp("nvml")
    for name, flags in (("old", []), ("new", ["-DNEW_NAMES"])):
        (folder / name).mkdir()
        out = folder / name / "libnvidia-ml.so.1"
        subprocess.run([str(CC), "-shared", "-fPIC", *flags, "-o", out, HERE / "nvml_stub.c"], check=True, timeout=60)
    return folder


def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def answer(value: Any) -> str:
    """A value of a case in the stub's notation."""
    if isinstance(value, dict) and "raise" in value:
        codes = {"NVMLError_NotSupported": 3, "NVMLError_Unknown": 999, "NVMLError_GpuIsLost": 15}
        return f"!{value.get('value') or codes[value['raise']]}"
    if isinstance(value, dict):
        order = ["total", "reserved", "free", "used"] if "reserved" in value else ["total", "free", "used"]
        return ",".join(str(value[key]) for key in (order if "total" in value else ["gpu", "memory"]))
    return "x" + value.encode().hex() if isinstance(value, str) else str(value)


def script(found: dict[str, Any], extra: list[str] | None = None) -> str:
    """A case as the stub's script."""
    lines = list(extra or [])
    if isinstance(found.get("nvmlInit"), dict):
        lines.append(f"nvmlInit -1 {answer(found['nvmlInit'])}")
    lines.append(f"nvmlDeviceGetCount -1 {found.get('nvmlDeviceGetCount', 1)}")
    lines += [f"{name} 0 {' '.join(map(answer, values))}" for name, values in found.items() if isinstance(values, list)]
    return "\n".join(lines) + "\n"


class Nvml:
    """Runs the monitor in a process of its own on a script."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self.folder = library, folder

    def environment(self, text: str, build: str = "new", **more: str) -> dict[str, str]:
        """`more` adds to or replaces these variables."""
        file = self.folder / "script.txt"
        file.write_text(text)
        mine = {"LD_LIBRARY_PATH": str(self.library / build), "NVML_SCRIPT": str(file), "PYTHONPATH": str(ROOT)}
        return {"PATH": os.environ["PATH"]} | mine | more

    def run(self, text: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "tokenswarm.monitors.gpu", *words]
        environment = self.environment(text, **more)
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def once(self, text: str, *words: str, **more: str) -> dict[str, Any]:
        return json.loads(self.run(text, "--once", "--json", *words, **more).stdout)

    def polls(self, text: str, count: int) -> tuple[list[dict[str, float]], list[str]]:
        """The first `count` samples of the stream, and all notes up to then."""
        command = [sys.executable, "-m", "tokenswarm.monitors.gpu", "--stream"]
        child = subprocess.Popen(command, env=self.environment(text), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        samples: list[dict[str, float]] = []
        notes = []
        try:
            assert child.stdout is not None
            for line in child.stdout:
                found = json.loads(line)
                notes += [found["note"]] if "note" in found else []
                samples += [{metric: value for _, metric, value in found["rows"]}] if "rows" in found else []
                if len(samples) == count:
                    break
        finally:
            child.terminate()
            child.wait(10)
        return samples, notes


@pytest.fixture
def nvml(library: Path, tmp_path: Path) -> Nvml:
    return Nvml(library, tmp_path)


def values(found: dict[str, Any]) -> dict[str, float]:
    return {metric: value for _, metric, value in found["rows"]}


FULL = {"nvmlDeviceGetUtilizationRates": [{"gpu": 97, "memory": 60}], "nvmlDeviceGetTemperature": [71],
        "nvmlDeviceGetMemoryInfo_v2": [{"total": 24 << 30, "reserved": 0, "free": 2 << 30, "used": 22 << 30}],
        "nvmlDeviceGetPowerUsage": [401000], "nvmlDeviceGetEnforcedPowerLimit": [425000], "sm": [2520], "mem": [10501],
        "reasons": [36], "tx": [2048], "rx": [1024], "nvmlDeviceGetCurrPcieLinkGeneration": [4],
        "nvmlDeviceGetCurrPcieLinkWidth": [16], "nvmlDeviceGetName": ["NVIDIA GeForce RTX 4090 D"],
        "nvmlDeviceGetUUID": ["GPU-aaaa-1"], "nvmlDeviceGetPciInfo": ["00000000:01:00.0"]}  # fmt: skip


@needs_cc
@pytest.mark.parametrize("build", ["new", "old"])
def test_every_field_of_a_good_card(nvml: Nvml, build: str) -> None:
    found = nvml.once(script(FULL, [f"processes 0 {os.getpid()},{21 << 30}"]), build=build)
    got = values(found)
    assert {k: got[k] for k in got if not k.startswith("process")} == {
        "util_pct": 97, "mem_used_mib": 22528, "mem_total_mib": 24576, "power_w": 401, "power_limit_w": 425,
        "temp_c": 71, "sm_mhz": 2520, "mem_mhz": 10501, "throttle": 36, "pcie_tx_mib_s": 2, "pcie_rx_mib_s": 1,
        "pcie_gen": 4, "pcie_width": 16}  # fmt: skip
    assert found["rows"][0][0] == "gpu0|GPU-aaaa-1|00000000:01:00.0", "UUID and bus id in each row"
    process = next(k for k in got if k.startswith("process"))
    assert process.split()[1] == str(os.getpid()) and process.split()[2] not in ("?", ""), process
    assert found["notes"] == []


@needs_cc
@pytest.mark.parametrize("name", ["driver-not-loaded", "no-library", "version-mismatch"])
def test_without_a_working_driver_there_is_one_line(nvml: Nvml, name: str) -> None:
    found = nvml.once(script(case(name)))
    assert found["rows"] == []
    assert len(found["notes"]) == 1 and "no GPU is watched" in found["notes"][0], found["notes"]


def test_no_library_at_all(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # found first, so this host's own does not count
    command = [sys.executable, "-m", "tokenswarm.monitors.gpu", "--once"]
    empty = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=empty, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert "no GPU is watched" in done.stderr and case("no-library")["nvmlInit"]["raise"].endswith("LibraryNotFound")


@needs_cc
def test_a_deprecated_twin_of_the_bindings_neither_warns_nor_spoils_stdout(nvml: Nvml, tmp_path: Path) -> None:
    """pynvml-two-packages: a `pynvml` with its own folder wins over nvidia-ml-py's pynvml.py, and warns on import."""
    twin = tmp_path / "twin/pynvml"
    twin.mkdir(parents=True)
    shutil.copy(pynvml.__file__, twin / "nvml.py")
    warn = "import warnings\nwarnings.warn('The pynvml package is deprecated.', FutureWarning, stacklevel=2)\n"
    (twin / "__init__.py").write_text(warn + "from .nvml import *\n")
    path = os.pathsep.join([str(twin.parent), str(ROOT)])
    alone = [sys.executable, "-W", "error", "-c", "import pynvml"]
    bare = subprocess.run(alone, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=30)
    assert "FutureWarning" in bare.stderr, "the twin is the one that is imported, and it does warn"
    text = script(FULL, [f"processes 0 {os.getpid()},{21 << 30}"])
    done = nvml.run(text, "--once", PYTHONPATH=path)  # under -W error
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == nvml.run(text, "--once").stdout and "power_w" in done.stdout


@needs_cc
def test_a_card_without_power_keeps_the_rest_and_says_so_once(nvml: Nvml) -> None:
    samples, notes = nvml.polls(script(case("laptop-no-power")), 3)
    for got in samples:
        assert got["util_pct"] == 35 and got["temp_c"] == 61 and "power_w" not in got and "power_limit_w" not in got
        assert got["mem_used_mib"] == pytest.approx(4513978368 / 2**20)
    assert sum("power_w" in note for note in notes) == 1, notes


@needs_cc
def test_wsl_has_no_utilisation_and_only_the_old_memory_call(nvml: Nvml) -> None:
    found = nvml.once(script(case("wsl-no-util")))
    got = values(found)
    assert "util_pct" not in got and got["power_w"] == 18
    assert got["mem_used_mib"] == pytest.approx(466419712 / 2**20)
    assert next(iter(found["facts"].values()))["memory_api"] == "v1"


@needs_cc
def test_a_card_whose_memory_is_unknown_leaves_it_blank(nvml: Nvml) -> None:
    got = values(nvml.once(script(case("gb10-memory-not-supported"))))
    assert not {"mem_used_mib", "mem_total_mib"} & got.keys()
    assert got["util_pct"] == 0 and got["power_w"] == pytest.approx(11.17)


@needs_cc
def test_a_lost_card_is_marked_and_the_sampler_lives_on(nvml: Nvml) -> None:
    samples, notes = nvml.polls(script(case("gpu-lost-mid-run")), 4)
    assert [got.get("util_pct") for got in samples] == [98, 99, None, None]
    assert [got.get("lost") for got in samples] == [None, None, 1, 1]
    assert sum("is lost" in note for note in notes) == 1, notes


@needs_cc
def test_success_with_zeros_is_unknown(nvml: Nvml) -> None:
    samples, notes = nvml.polls(script(case("jetson-success-zeros")), 2)
    assert samples == [{}, {}] and sum("unknown" in note for note in notes) == 1, notes


@needs_cc
def test_one_memory_call_for_the_whole_run(nvml: Nvml) -> None:
    samples, _ = nvml.polls(script(case("memory-v1-vs-v2")), 3)
    assert len({got["mem_used_mib"] for got in samples}) == 1, "308 MiB after 0 would look like growth"
    found = nvml.once(script(case("memory-v1-vs-v2")))
    assert next(iter(found["facts"].values()))["memory_api"] == "v2"


@needs_cc
def test_a_broken_name_is_no_reason_to_stop(nvml: Nvml) -> None:
    broken = FULL | {"nvmlDeviceGetName": []}
    text = script(broken) + "nvmlDeviceGetName 0 xff80fe\n"
    found = nvml.once(text)
    assert values(found)["util_pct"] == 97
    assert gpu.text_of(b"RTX \xff") == "RTX \ufffd"


def test_throttle_reasons_by_number() -> None:
    found = case("throttle-reason-names")
    assert gpu.reasons(found["mask"]) == ["SwPowerCap", "SwThermalSlowdown"]
    assert {hex(bit): name for bit, name in gpu.REASONS.items()} == found["bits"]
    assert gpu.reasons(0x1000) == ["0x1000"] and gpu.reasons(0) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-aaaa", [0]),
        ("MIG-bbbb", ["MIG-bbbb"]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        (None, [0, 1]),
    ],
)
def test_devices_are_chosen_as_cuda_would(text: str | None, wanted: list[int | str]) -> None:
    assert gpu.choose(text, ["GPU-aaaa-1", "GPU-cccc-2"]) == wanted
    for env in case("visible-devices")["env"]:
        if isinstance(env.get("want_nvml_index"), list):
            assert gpu.choose(env["CUDA_VISIBLE_DEVICES"], ["GPU-aaaa-1", "GPU-cccc-2"]) == env["want_nvml_index"]


@needs_cc
def test_the_loads_own_environment_decides_nothing(nvml: Nvml) -> None:
    two = (
        script(FULL).replace("nvmlDeviceGetCount -1 1", "nvmlDeviceGetCount -1 2")
        + "nvmlDeviceGetUtilizationRates 1 5,1\n"
    )
    assert len({row[0] for row in nvml.once(two, CUDA_VISIBLE_DEVICES="1")["rows"]}) == 2
    assert {row[0] for row in nvml.once(two, "--devices", "1")["rows"]} == {"gpu1"}


@needs_cc
def test_a_mig_slice_by_its_uuid(nvml: Nvml) -> None:
    slice_ = f"nvmlDeviceGetUUID 100 x{b'MIG-bbbb'.hex()}\nnvmlDeviceGetMemoryInfo 100 1000000000,0,500000000\n"
    found = nvml.once(script(FULL) + slice_, "--devices", "MIG-bbbb")
    assert set(values(found)) == {"mem_used_mib", "mem_total_mib"}


@needs_cc
def test_the_agents_page_is_read_back_as_the_same_rows(nvml: Nvml) -> None:
    text = script(FULL, [f"processes 0 {os.getpid()},{21 << 30}"])
    here = nvml.once(text)
    command = [sys.executable, "-m", "tokenswarm.monitors.gpu", "--serve", "0", "--host", "127.0.0.1"]
    child = subprocess.Popen(command, env=nvml.environment(text), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip().rpartition("GPU_METRICS_URL=")[2]
        with urllib.request.urlopen(url, timeout=10) as page:
            series = prometheus.parse(page.read().decode())
    finally:
        child.terminate()
        child.wait(10)
    rows, facts, simulated = dcgm.from_page(series)
    assert sorted(rows) == sorted(map(tuple, here["rows"])) and not simulated
    assert next(iter(facts.values()))["name"] == "NVIDIA GeForce RTX 4090 D"


def test_a_dcgm_exporters_page() -> None:
    labels = 'gpu="1",UUID="GPU-x",pci_bus_id="00000000:41:00.0",modelName="H100",Hostname="box"'
    text = f"DCGM_FI_DEV_FB_USED{{{labels}}} 70000\nDCGM_FI_DEV_FB_FREE{{{labels}}} 11000\n"
    text += f'DCGM_FI_PROF_PCIE_TX_BYTES{{{labels}}} 1048576\nDCGM_FI_DEV_GPU_UTIL{{{labels},GPU_I_ID="3"}} 44\n'
    rows, _, _ = dcgm.from_page(prometheus.parse(text))
    whole = "gpu1|GPU-x|00000000:41:00.0"
    assert (whole, "mem_total_mib", 81000) in rows and (whole, "pcie_tx_mib_s", 1.0) in rows
    assert ("gpu1.3|GPU-x|00000000:41:00.0", "util_pct", 44) in rows


@needs_cc
def test_the_stream_ends_when_nobody_reads(nvml: Nvml) -> None:
    command = [sys.executable, "-m", "tokenswarm.monitors.gpu", "--stream"]
    child = subprocess.Popen(command, env=nvml.environment(script(FULL)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline()
    child.stdout.close()
    until = time.monotonic() + 10
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    assert child.poll() == 0
