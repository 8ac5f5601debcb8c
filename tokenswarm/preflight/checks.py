"""The checks in their order: those of this machine, and those of one target."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenswarm import runs
from tokenswarm.preflight import facts
from tokenswarm.preflight.reach import Answer, Fault, Server, reach, server, without_keys
from tokenswarm.preflight.trial import Trial, ms, shown, user_class
from tokenswarm.profiles import ProfileError
from tokenswarm.record import RequestRecord
from tokenswarm.users.base import load_prompts

RAMP_USERS = 100  # the last step of locustfiles/ramp.py, when STEPS does not say
SPARE_FILES = 100  # what a load process has open besides one connection a user
DISK_WARN, DISK_FAULT = 100 << 20, 10 << 20
NETWORK_SHARE = 5  # TTFT under 5 x RTT: the network is a large part of it (method section 9)
NEAR = 0.9
UNKNOWN = dict.fromkeys(("max_model_len", "usage", "rtt_ms", "rtt_min_ms", "keepalive", "metrics_url", "gpu_blocks"))


@dataclass
class Checked:
    """What was found out about one target, or about this machine (kind "")."""

    kind: str = ""
    rows: list[tuple[str, str, str]] = field(default_factory=list)  # check, ok | warning | fault, detail
    facts: dict[str, Any] = field(default_factory=dict)
    record: RequestRecord | None = None

    def add(self, check: str, result: str, detail: str) -> None:
        self.rows.append((check, result, without_keys(detail)))

    def details(self, result: str) -> list[str]:
        """The details of one result."""
        return [detail for _, r, detail in self.rows if r == result]

    def lines(self, result: str) -> list[str]:
        """The same with the kind in front."""
        return [f"{self.kind}: {detail}" if self.kind else detail for detail in self.details(result)]


def check_target(options: Any, kind: str) -> Checked:
    """All checks of one target. The model found becomes the option that the requests then use."""
    named = {name: getattr(options, f"{kind}_{name}") for name in ("url", "model")}
    seen = Checked(kind, facts={**named, "server": "", **UNKNOWN})
    try:
        _profile(seen, options)
        there = server(options, kind)
        answer = reach(there)
        seen.add("reachable", "ok", there.target.url)
        if there.context and options.insecure:
            seen.add("TLS", "warning", "INSECURE=1: certificates are NOT verified, anybody may be answering")
        model, entry = facts.choose_model(there, answer)
        seen.add("model", "ok", model if there.target.model else f"{model} (the only one there)")
        seen.facts["model"] = model
        setattr(options, f"{kind}_model", model)
        _server(seen, there, answer, entry)
        _round_trips(seen, there)
        _requests(seen, there, options)
    except Fault as fault:
        seen.add(fault.check, "fault", str(fault))
    return seen


def _profile(seen: Checked, options: Any) -> None:
    try:
        profile = load_prompts(options, user_class(seen.kind))
    except ProfileError as error:
        raise Fault("profile", str(error)) from None
    except OSError as error:
        raise Fault("profile", f"the profile cannot be read: {error}") from None
    seen.add("profile", "ok", f"{profile.name}: {len(profile.prompts)} prompts")


def _server(seen: Checked, there: Server, answer: Answer, entry: dict[str, Any]) -> None:
    """Kind and version, context length, metrics."""
    header = answer.headers.get("server", "")
    name, more = facts.identify(there, str(entry.get("owned_by", "")), header)
    seen.facts |= {"server": name, "server_header": header, **more}
    if type(entry.get("max_model_len")) is int:
        seen.facts["max_model_len"] = entry["max_model_len"]
    length = seen.facts["max_model_len"]
    text = name or f"unknown kind (Server: {header or 'blank'})"
    seen.add("server", "ok", f"{text}, context {length}" if length else text)
    why, more = facts.engine_metrics(there, seen.facts["model"])
    seen.facts |= more
    if why:
        line = f"no engine metrics: limits cannot be explained ({why}); see {there.setting}_METRICS_URL"
        seen.add("metrics", "warning", line)
    else:
        blocks = f", {more['gpu_blocks']} KV blocks" if "gpu_blocks" in more else ""
        seen.add("metrics", "ok", f"{there.target.metrics_url}{blocks}")


def _round_trips(seen: Checked, there: Server) -> None:
    try:
        times = facts.round_trips(there)
    except OSError as error:
        line = f"{there.target.url} answered, then took no more connections ({error}): is it under load already?"
        raise Fault("RTT", line) from None
    least, median = min(times), statistics.median(times)
    seen.facts |= {"rtt_ms": round(median, 3), "rtt_min_ms": round(least, 3)}
    seen.add("RTT", "ok", f"min {ms(least)}, median {ms(median)} of {len(times)} TCP connects")


def _requests(seen: Checked, there: Server, options: Any) -> None:
    """One drawn request shown as its record, then the profile's largest prompt over the same connection."""
    try:
        trial = Trial(there, options)
    except (ValueError, OSError) as error:
        raise Fault("request", str(error)) from None
    try:
        if options.input_tokens:
            _calibrate(seen, trial)
        seen.record = record = trial.send()
        if record.error:
            raise Fault("request", trial.explain(record))
        seen.add("request", "ok", shown(record))
        has_key = bool(os.environ.get(f"{there.setting}_API_KEY"))
        seen.add("key", "ok", "accepted" if has_key else "none set, none asked for")
        _answer(seen, trial, record)
        _largest(seen, trial)
    finally:
        trial.close()


def _calibrate(seen: Checked, trial: Trial) -> None:
    """Synthetic prompts get the wanted length without a tokenizer of our own."""
    try:
        found = trial.calibrate()
    except ProfileError as error:
        raise Fault("INPUT_TOKENS", str(error)) from None
    if found is None:
        seen.add("INPUT_TOKENS", "warning", "no usage in the answers, so the prompts' length is a guess")
        return
    seen.facts |= {"tokens_per_word": found[0], "prompt_overhead": found[1]}
    seen.add("INPUT_TOKENS", "ok", f"{found[0]:.2f} tokens a word, {found[1]:.0f} of the frame, by the server's count")


def _answer(seen: Checked, trial: Trial, record: RequestRecord) -> None:
    """Usage, streaming, verdict, and the network's share."""
    seen.facts["usage"] = record.input_tokens is not None or record.tokens_source == "usage"
    if not seen.facts["usage"]:
        counted = "tokens are counted by chunks" if record.chunks is not None else "token counts stay blank"
        seen.add("usage", "warning", f"no usage in the answer: {counted}; have the server send it if it can")
    if record.chunks is not None:
        _streaming(seen, trial, record)
    if record.outcome == "unparsed":
        seen.add("verdict", "warning", "the answer is no verdict that can be read: is this a guard model?")
    rtt = seen.facts["rtt_ms"]
    if record.ttft_ms is not None and record.ttft_ms < NETWORK_SHARE * rtt:
        line = f"TTFT {ms(record.ttft_ms)} is under {NETWORK_SHARE} x RTT {ms(rtt)}"
        seen.add("network", "warning", f"{line}: much of it is the network's; test from nearer to the server")


def _streaming(seen: Checked, trial: Trial, record: RequestRecord) -> None:
    held = "TTFT and TPOT are then not the model's; look for a proxy that buffers"
    one_token = record.tokens_source == "usage" and record.output_tokens == 1
    if record.chunks == 1 and not one_token:
        seen.add("streaming", "warning", f"the whole answer came in one chunk: {held}")
    elif trial.bursts():
        seen.add("streaming", "warning", f"most of the {record.chunks} chunks came in bursts: {held}")
    else:
        seen.add("streaming", "ok", f"{record.chunks} chunks, one after the other")


def _largest(seen: Checked, trial: Trial) -> None:
    """The profile's largest prompt is taken by the server, and its request found the connection open."""
    prompt, limit = trial.largest(), seen.facts["max_model_len"]
    record = trial.send(prompt)
    known, output = record.input_tokens is not None, trial.output(prompt)
    need = record.input_tokens + output if record.input_tokens is not None else trial.tokens(prompt)
    images = f", {record.items} images" if seen.kind == "vlm" else ""
    size = f"{prompt.id!r}{images}, {'' if known else 'about '}{need} tokens{' with its output' if output else ''}"
    context = f", the server's context is {limit}" if limit else ""
    if record.error:
        seen.add("largest prompt", "fault", f"the profile's largest prompt ({size}{context}): {trial.explain(record)}")
    elif limit and output and need > NEAR * limit:
        line = f"{size}{context}: another draw may not fit; lower MAX_TOKENS or give the server a longer context"
        seen.add("largest prompt", "warning", line)
    else:
        seen.add("largest prompt", "ok", f"{size}{context}")
    _keep_alive(seen, record, trial.closed)
    if record.items and seen.kind == "vlm" and not record.error and (each := trial.image_tokens(prompt, record)):
        seen.facts["image_tokens"] = each
        seen.add("images", "ok", f"about {each:.0f} input tokens each, by the server's count")


def _keep_alive(seen: Checked, record: RequestRecord, closed: bool) -> None:
    seen.facts["keepalive"] = record.connect_ms is None and not closed
    if seen.facts["keepalive"]:
        seen.add("keep-alive", "ok", "the second request used the first one's connection")
    else:
        line = "the server closes after an answer, so each request opens a connection (KEEPALIVE=0)"
        seen.add("keep-alive", "warning", line)


def check_machine(options: Any, run_dir: str) -> Checked:
    """Open files and disk space of this machine."""
    seen, users = Checked(), os.environ.get("USERS", "")
    _open_files(seen, int(users) if users.isdigit() else max(options.steps or [RAMP_USERS]))
    _disk(seen, Path(run_dir) if run_dir else runs.reports_dir())
    return seen


def _open_files(seen: Checked, users: int) -> None:
    need = users + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        way = f"raise it with `ulimit -n {need}` as root (docker: --ulimit nofile={need}), or use fewer users"
        seen.add("open files", "fault", f"at most {hard} open files are allowed, {users} users need {need}: {way}")
    elif soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        seen.add("open files", "ok", f"{soft}, raised to the {need} that {users} users need")
    else:
        seen.add("open files", "ok", f"{soft}, {users} users need {need}")


def _disk(seen: Checked, folder: Path) -> None:
    other = "or give another folder in REPORTS"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        seen.add("disk", "fault", f"{folder}/ cannot be written ({error.strerror}): make it writable, {other}")
        return
    result = "fault" if free < DISK_FAULT else "warning" if free < DISK_WARN else "ok"
    advice = "" if result == "ok" else f": free some space, {other}"
    seen.add("disk", result, f"{free >> 20} MB free in {folder}/{advice}")
