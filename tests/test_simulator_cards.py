"""Engines that share a card share its time and memory; gauges follow the load."""

import time
from dataclasses import replace

import pytest
import virtual
from simulator_client import ask, chat, series, simulator

from simulator.cards import LAYOUT, TOTAL_MIB, Card, parse_layout, place, share_memory
from simulator.options import parse

BLOCKS = {"llm": 8192, "guard": 8192, "vlm": 8192, "embedding": 8192, "rerank": 8192}


def test_the_default_layout_is_the_articles() -> None:
    assert parse_layout(LAYOUT) == [["embedding", "rerank"], ["vlm"], ["llm"], ["guard"]]


@pytest.mark.parametrize("text", ["llm", "llm+llm,guard,vlm,embedding,rerank", "llm,guard,vlm,embedding,rerank,gpt"])
def test_a_layout_places_each_kind_once(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--cards", text])
    assert ended.value.code == 2
    assert "once" in capsys.readouterr().err


def test_memory_is_as_asked_where_it_fits_and_shared_where_not() -> None:
    assert share_memory(["llm"], BLOCKS)["llm"] == 8192
    assert share_memory(["llm", "guard"], BLOCKS) == {"llm": 8192, "guard": 8192}
    squeezed = share_memory(["llm", "vlm"], BLOCKS)
    assert squeezed["llm"] == squeezed["vlm"] < 8192
    cards = place([["llm", "vlm"], ["guard"], ["embedding", "rerank"]], BLOCKS, 0.0, 0.0)
    assert cards["llm"] is cards["vlm"] and cards["llm"].used_mib <= TOTAL_MIB


def test_two_busy_engines_take_turns_and_an_idle_one_costs_nothing() -> None:
    alone = virtual.run_stage("a", {"llm": 4}, 20)
    apart = virtual.run_stage("a", {"llm": 4, "guard": 4}, 20)
    beside = virtual.run_stage(
        "a", {"llm": 4, "guard": 4}, 20, layout=[["llm", "guard"], ["vlm"], ["embedding", "rerank"]]
    )

    def rate(rows: list) -> int:
        return sum(row.endpoint == "llm" for row in rows)

    assert rate(apart) == rate(alone)
    assert rate(beside) == pytest.approx(0.55 * rate(alone), rel=0.15)


def test_a_leak_in_virtual_time_is_as_long_as_the_flag_says() -> None:
    config = replace(virtual.LLM, leak_s_per_s=0.002 / 60)
    rows = virtual.run_stage("a", {"llm": 1}, 120, configs={"llm": config})
    tpots = [(row.e2e_ms - row.ttft_ms) / (row.output_tokens - 1) for row in rows if row.output_tokens > 5]
    assert tpots[-1] - tpots[0] == pytest.approx(4.0, abs=0.3)


def test_utilisation_power_and_temperature_follow_the_load() -> None:
    card = Card(0, 1000.0)
    assert card.gauges(10.0)["DCGM_FI_DEV_GPU_UTIL"] == 0
    for second in range(10, 40):
        assert card.begin(second) == 1.0
        card.end(second + 0.5)
        card.gauges(float(second + 1))
    busy = card.gauges(40.0)
    assert busy["DCGM_FI_DEV_GPU_UTIL"] == pytest.approx(50, abs=1)
    assert busy["DCGM_FI_DEV_POWER_USAGE"] > 150 and busy["DCGM_FI_DEV_GPU_TEMP"] > 35
    assert busy["DCGM_FI_DEV_FB_USED"] + busy["DCGM_FI_DEV_FB_FREE"] == TOTAL_MIB


def test_memory_that_leaks_grows_by_the_minute_and_ends_at_the_cards_size() -> None:
    card = place(parse_layout(LAYOUT), BLOCKS, 100.0, 30 / 60)["llm"]
    first, later = (card.gauges(100.0 + 60 * m)["DCGM_FI_DEV_FB_USED"] for m in (0, 10))
    assert later - first == 300
    assert card.gauges(1e7)["DCGM_FI_DEV_FB_USED"] == TOTAL_MIB


def test_the_metrics_page_has_a_gauge_for_each_card_and_says_it_is_simulated() -> None:
    with simulator("--step-ms", "2") as port:
        page = ask(port, "/metrics").tail.decode()
        assert 'DCGM_FI_DEV_FB_USED{Hostname="simulator",UUID="GPU-simulated-3"' in page
        assert page.count("Simulated RTX 4090 D") >= 4 * 8
        assert series(port)["DCGM_FI_DEV_FB_TOTAL", ""] == 4 * TOTAL_MIB


def test_a_burst_of_errors_begins_and_ends() -> None:
    with simulator("--step-ms", "1", "--error-burst", "0:1.5") as port:
        assert ask(port, "/v1/chat/completions", chat(max_tokens=1)).status == 500
        assert ask(port, "/v1/embeddings", {"input": "x"}).status == 500
        time.sleep(1.6)
        assert ask(port, "/v1/chat/completions", chat(max_tokens=1)).status == 200
