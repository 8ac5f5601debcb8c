"""GPU rows as Prometheus text in dcgm-exporter's names, written and read: our own agent's page and NVIDIA's alike."""

from __future__ import annotations

from typing import Any

from tokenswarm.monitors.prometheus import Labels, Series, sample

MIB = 2.0**20
Row = tuple[str, str, float]
NAMES = {  # our metric -> (dcgm-exporter's name, factor)
    "util_pct": ("DCGM_FI_DEV_GPU_UTIL", 1.0),
    "mem_used_mib": ("DCGM_FI_DEV_FB_USED", 1.0),
    "mem_total_mib": ("DCGM_FI_DEV_FB_TOTAL", 1.0),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "power_limit_w": ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 1.0),
    "temp_c": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "sm_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "mem_mhz": ("DCGM_FI_DEV_MEM_CLOCK", 1.0),
    "throttle": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1.0),
    "pcie_tx_mib_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", MIB),
    "pcie_rx_mib_s": ("DCGM_FI_PROF_PCIE_RX_BYTES", MIB),
    "pcie_gen": ("DCGM_FI_DEV_PCIE_LINK_GEN", 1.0),
    "pcie_width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 1.0),
    "lost": ("TOKENSWARM_GPU_LOST", 1.0),
}
READ = {name: (metric, 1.0 / factor) for metric, (name, factor) in NAMES.items()} | {  # further names for the same
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle", 1.0),
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": ("pcie_tx_mib_s", 1 / 1024),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": ("pcie_rx_mib_s", 1 / 1024),
}
FREE = ("DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
PROCESS = "TOKENSWARM_GPU_PROCESS_MIB"
EXACT = frozenset({*READ, *FREE, PROCESS})
PREFIXES = ("DCGM_FI_", "TOKENSWARM_GPU_")


def line(metric: str, labels: Labels, value: float) -> tuple[str, str]:
    """(family, its line) of one of our metrics."""
    if metric.startswith("process "):
        _, pid, user, process = metric.split(" ", 3)
        return PROCESS, sample(PROCESS, labels | {"pid": pid, "user": user, "process": process}, value)
    name, factor = NAMES[metric]
    return name, sample(name, labels, value * factor)


def from_page(series: Series) -> tuple[list[Row], dict[str, dict[str, Any]], bool]:
    """(rows, facts by source, simulated) of a page in dcgm-exporter's names; an own line for each MIG slice."""
    values: dict[str, dict[str, float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    simulated = False
    rows: list[Row] = []
    for name in (*READ, *FREE, PROCESS):
        for labels, value in series.get(name, ()):
            index = labels.get("gpu", "?") + (f".{labels['GPU_I_ID']}" if labels.get("GPU_I_ID") else "")
            parts = [f"gpu{index}", labels.get("UUID", ""), labels.get("pci_bus_id", "")]
            source = "|".join(parts).replace(",", " ").rstrip("|")
            facts[source] = {"index": index, "name": labels.get("modelName", ""), "uuid": parts[1], "bus": parts[2]}
            simulated |= "simulat" in " ".join(labels.values()).lower() or labels.get("simulated", "") in ("1", "true")
            mine = values.setdefault(source, {})
            if name in READ:
                metric, factor = READ[name]
                mine.setdefault(metric, value * factor)
            elif name in FREE:
                mine["_free"] = mine.get("_free", 0.0) + value
            else:
                rows.append(
                    (source, f"process {labels.get('pid')} {labels.get('user')} {labels.get('process')}", value)
                )
    for source, mine in values.items():
        free = mine.pop("_free", None)
        if free is not None and "mem_used_mib" in mine:
            mine.setdefault("mem_total_mib", mine["mem_used_mib"] + free)
        rows += [(source, metric, value) for metric, value in mine.items()]
    return rows, facts, simulated
