"""What we add to Locust's web UI: tabs (Tokens, GPU, Engine, Workers), the page /live, /metrics for Prometheus."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from flask import Response, request
from locust import events

from tokenswarm import livedata, recorder  # noqa: F401  (recorder's init listener makes the collector, before ours)
from tokenswarm.histogram import quantile
from tokenswarm.livedata import LiveRun, rounded
from tokenswarm.monitors.prometheus import sample

PAGE = Path(__file__).with_name("live.html")
RECENT_S = 5
TABS = {
    "Tokens": "endpoint Endpoint|stage Stage|requests Requests|failed Failed|ttft_p50 TTFT P50 ms|ttft_p95 TTFT P95|"
    "ttft_p99 TTFT P99|tpot_p50 TPOT P50 ms|tpot_p95 TPOT P95|itl_p50 ITL P50 ms|itl_p99 ITL P99|tokens_s tokens/s|"
    "goodput_s goodput/s",
    "GPU": "gpu GPU|util_pct busy %|mem_used_mib memory MiB|mem_total_mib of MiB|power_w power W|power_limit_w limit W|"
    "temp_c C|sm_mhz SM MHz",
    "Engine": "engine Engine|up answers|running running|waiting waiting|kv_pct KV %|preemptions preemptions|"
    "prefix_pct prefix hits %|tokens_s tokens/s",
    "Workers": "worker Worker|cpu_pct CPU %|lag_max_ms lag ms|gc_max_ms GC ms|rss_mib MiB|files open files|users users|"
    "rows records|in_flight records in flight",
}  # tab: columns, each a key and its title


class Ui:
    """The state behind the pages: the run that is on, and how many users there were."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.collector = environment.collector
        self.live: LiveRun | None = None
        self.users: deque[tuple[int, int]] = deque(maxlen=livedata.KEEP_S)
        gevent.spawn(self._count_users)

    def _count_users(self) -> None:
        while True:
            self.users.append((int(time.time()), self.environment.runner.user_count))
            gevent.sleep(1.0)

    def now(self) -> LiveRun | None:
        """The present run's live data, read up to now; None before the first run."""
        folder = self.collector.path
        if folder is None:
            return None
        if self.live is None or self.live.folder != folder:
            self.live = LiveRun(folder, self.collector.info["slo"])
        while self.live.update():
            gevent.sleep(0)  # the load goes first
        return self.live

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by tab."""
        live = self.now()
        if live is None:
            return {name: [] for name in TABS}
        return {"Tokens": livedata.tokens_table(live), "GPU": livedata.gpu_table(live),
                "Engine": livedata.engine_table(live), "Workers": self.workers(live)}  # fmt: skip

    def workers(self, live: LiveRun) -> list[dict[str, Any]]:
        """Rows of the Workers tab."""
        return [
            {
                "worker": name + (" (lost)" if w.lost else ""),
                "users": w.tally.live,
                "rows": w.rows,
                "in_flight": w.last_seq - w.rows,
                **{
                    k: rounded(live.host[name].get(k))
                    for k in ("cpu_pct", "lag_max_ms", "gc_max_ms", "rss_mib", "files")
                },
            }
            for name, w in self.collector.workers.items()
        ]

    def data(self, run: str, since: int) -> dict[str, Any]:
        """What /live/data answers: where the run is, its points that changed after look `since` of this run, tables."""
        live, info = self.now(), self.collector.info
        stage = info["stages"][-1] if info.get("stages") else {}
        out = {"now": time.time(), "run": info.get("run", ""), "phase": info.get("phase", ""),
               "state": info.get("state", "waiting for a run"), "simulated": bool(info.get("simulated")),
               "stage": stage.get("stage", ""), "users": self.environment.runner.user_count,
               "started": info.get("started"), "slo": info.get("slo", {}), "reasons": info.get("reasons", []),
               "stages": [{"stage": s["stage"], "start": s["start"]} for s in info.get("stages", [])]}  # fmt: skip
        since = since if live and run == info.get("run") else 0
        points = {p["t"]: p for p in live.points(since)} if live else {}
        first = max(int(info.get("started") or 0), int(time.time()) - RECENT_S if since else 0)
        for at, users in self.users if live else ():
            if at >= first:
                points.setdefault(at, {"t": at})["users"] = users
        look = live.looks if live else 0
        return out | {"look": look, "points": [points[t] for t in sorted(points)], "tables": self.tables()}

    def prometheus(self) -> str:
        """The same as Prometheus text."""
        lines = ["# TYPE tokenswarm_users gauge\n", sample("tokenswarm_users", {}, self.environment.runner.user_count)]
        live = self.now()
        if live is None:
            return "".join(lines)
        lines.append("# TYPE tokenswarm_requests_total counter\n")
        for (endpoint, result), count in live.totals.items():
            lines.append(sample("tokenswarm_requests_total", {"endpoint": endpoint, "result": result}, count))
        lines.append("# TYPE tokenswarm_output_tokens_total counter\n")
        lines += [sample("tokenswarm_output_tokens_total", {"endpoint": k}, n) for k, n in live.tokens.items()]
        for name in ("ttft", "tpot", "itl"):
            lines.append(f"# TYPE tokenswarm_{name}_seconds gauge\n")  # of the stage so far, not of all time
            for endpoint, tally in live.stages.items():
                for q in (0.5, 0.95, 0.99):
                    if (value := quantile(getattr(tally, name), q)) is not None:
                        labels = {"endpoint": endpoint, "stage": tally.stage, "quantile": f"{q:g}"}
                        lines.append(sample(f"tokenswarm_{name}_seconds", labels, value / 1000))
        lines.append("# TYPE tokenswarm_goodput_per_second gauge\n")
        lines += [sample("tokenswarm_goodput_per_second", {"endpoint": k, "stage": t.stage}, t.good / t.seconds)
                  for k, t in live.stages.items()]  # fmt: skip
        for metric in ("cpu_pct", "lag_max_ms", "rss_mib"):
            lines.append(f"# TYPE tokenswarm_worker_{metric} gauge\n")
            lines += [
                sample(f"tokenswarm_worker_{metric}", {"worker": w}, v[metric])
                for w, v in live.host.items()
                if metric in v
            ]
        return "".join(lines)


def install(environment: Any) -> None:
    """Add tabs and routes to this master's web UI, behind its login if it has one."""
    web, ui = environment.web_ui, Ui(environment)
    web.template_args["extended_tabs"] = [{"title": name, "key": name.lower()} for name in TABS]
    web.template_args["extended_tables"] = [
        {"key": name.lower(), "structure": [dict(zip(("key", "title"), c.split(" ", 1))) for c in columns.split("|")]}
        for name, columns in TABS.items()
    ]
    base = (environment.parsed_options.web_base_path or "").rstrip("/")

    def route(path: str, make: Callable[[], Response]) -> None:
        web.app.add_url_rule(base + path, "tokenswarm" + path.replace("/", "_"), web.auth_required_if_enabled(make))

    route("/live", lambda: Response(PAGE.read_text(encoding="utf-8"), mimetype="text/html"))
    route("/live/data", lambda: _json(ui.data(request.args.get("run", ""), request.args.get("since", 0, int))))
    route("/metrics", lambda: Response(ui.prometheus(), mimetype="text/plain; version=0.0.4"))

    # Python's own Ctrl-C would break into whichever greenlet runs, with a traceback; Locust ends in order on SIGTERM
    gevent.signal_handler(signal.SIGINT, os.kill, os.getpid(), signal.SIGTERM)

    @web.app.after_request
    def _add_rows(response: Response) -> Response:
        if request.path == base + "/stats/requests" and response.status_code == 200 and response.is_json:
            found = response.get_json()
            found["extended_stats"] = [{"key": name.lower(), "data": rows} for name, rows in ui.tables().items()]
            response.set_data(json.dumps(found))
        return response


def _json(value: dict[str, Any]) -> Response:
    return Response(json.dumps(value), mimetype="application/json", headers={"Cache-Control": "no-store"})


@events.init.add_listener
def _install(environment: Any, **_: Any) -> None:
    if environment.web_ui and hasattr(environment, "collector"):
        install(environment)
