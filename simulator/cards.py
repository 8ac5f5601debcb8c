"""GPUs that engines are placed on: those on one card share its time and its memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("llm", "guard", "vlm", "embedding", "rerank")
LAYOUT = "embedding+rerank,vlm,llm,guard"
TOTAL_MIB = 24564.0  # an RTX 4090 D
USABLE = 0.95
WEIGHTS_MIB = {"llm": 8000.0, "guard": 2000.0, "vlm": 7500.0, "embedding": 1200.0, "rerank": 1200.0}
BLOCK_MIB = {"llm": 0.875, "guard": 0.25, "vlm": 0.875, "embedding": 0.05, "rerank": 0.05}
IDLE_W, FULL_W = 22.0, 390.0
ROOM_C, C_PER_W, WARM_S = 30.0, 0.11, 60.0
WINDOW_S = 1.0


def parse_layout(text: str) -> list[list[str]]:
    """`a+b,c`: a and b on card 0, c on card 1. Every kind once; raises ValueError with the reason."""
    cards = [[kind.strip() for kind in card.split("+")] for card in text.split(",")]
    placed = [kind for card in cards for kind in card]
    if sorted(placed) != sorted(KINDS):
        raise ValueError(f"{text!r} should place each of {', '.join(KINDS)} once, such as {LAYOUT}")
    return cards


def share_memory(kinds: list[str], blocks: Mapping[str, int]) -> dict[str, int]:
    """KV-cache blocks each engine of a card gets: what was asked for if all fit, else the same share of it."""
    room = TOTAL_MIB * USABLE - sum(WEIGHTS_MIB[kind] for kind in kinds)
    wanted = sum(blocks[kind] * BLOCK_MIB[kind] for kind in kinds)
    factor = min(1.0, room / wanted) if len(kinds) > 1 else 1.0  # alone it gets what the flags say
    return {kind: int(blocks[kind] * factor) for kind in kinds}


@dataclass
class Card:
    """One GPU: how many of its engines compute now, and what its gauges say."""

    index: int
    used_mib: float
    leak_mib_per_s: float = 0.0
    born: float = 0.0
    computing: int = 0
    busy_s: float = 0.0
    since: float = 0.0
    looked: float = 0.0
    busy_then: float = 0.0
    util: float = 0.0
    temp: float = ROOM_C + C_PER_W * IDLE_W
    kinds: list[str] = field(default_factory=list)

    def begin(self, now: float) -> float:
        """An engine begins a step; how many times longer it takes for those that compute meanwhile."""
        if not self.computing:
            self.since = now
        self.computing += 1
        return float(self.computing)

    def end(self, now: float) -> None:
        self.computing -= 1
        if not self.computing:
            self.busy_s += now - self.since

    def gauges(self, now: float) -> dict[str, float]:
        """Values by dcgm-exporter's name; utilisation over the last second or more, temperature behind the power."""
        if now - self.looked >= WINDOW_S:
            self._look(now)
        used = min(TOTAL_MIB, self.used_mib + self.leak_mib_per_s * (now - self.born))
        return {
            "DCGM_FI_DEV_GPU_UTIL": round(self.util),
            "DCGM_FI_DEV_FB_USED": round(used),
            "DCGM_FI_DEV_FB_FREE": round(TOTAL_MIB - used),
            "DCGM_FI_DEV_FB_TOTAL": TOTAL_MIB,
            "DCGM_FI_DEV_POWER_USAGE": round(self.power, 1),
            "DCGM_FI_DEV_POWER_MGMT_LIMIT": 425.0,
            "DCGM_FI_DEV_GPU_TEMP": round(self.temp),
            "DCGM_FI_DEV_SM_CLOCK": 2520.0 if self.util >= 1 else 210.0,
        }

    @property
    def power(self) -> float:
        return IDLE_W + (FULL_W - IDLE_W) * self.util / 100

    def _look(self, now: float) -> None:
        passed = now - self.looked
        busy = self.busy_s + (now - self.since if self.computing else 0.0)
        self.util = 100 * min(1.0, max(0.0, (busy - self.busy_then) / passed))
        self.looked, self.busy_then = now, busy
        self.temp += (ROOM_C + C_PER_W * self.power - self.temp) * (1 - math.exp(-passed / WARM_S))


def place(layout: list[list[str]], blocks: Mapping[str, int], now: float, leak_mib_per_s: float) -> dict[str, Card]:
    """The card of each kind; memory is taken at the start as vLLM does; a leak adds to the llm's card."""
    cards: dict[str, Card] = {}
    for index, kinds in enumerate(layout):
        kv = share_memory(kinds, blocks)
        used = sum(WEIGHTS_MIB[kind] + kv[kind] * BLOCK_MIB[kind] for kind in kinds)
        leak = leak_mib_per_s if "llm" in kinds else 0.0
        card = Card(index, min(used, TOTAL_MIB * USABLE), leak, now, looked=now, since=now, kinds=kinds)
        cards |= dict.fromkeys(kinds, card)
    return cards
