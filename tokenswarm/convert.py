"""`python -m tokenswarm.prompts convert|show`: own prompts made into a profile, and a profile's lengths."""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenswarm.profiles import ProfileError, load, summary

ROLES = {
    "human": "user", "user": "user", "system": "system",
    "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "model": "assistant",
}  # fmt: skip
TEXT_SUFFIXES = (".txt", ".text", ".md")


class Skip(Exception):
    """One conversation that cannot be used, and why; the others still can."""


def conversations(path: Path) -> list[list[dict[str, str]] | Skip]:
    """The conversations of a ShareGPT-style JSON or JSONL file or of a plain-text file, as chat messages."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise ProfileError(f"{path}: the file is empty")
    if path.suffix.lower() in TEXT_SUFFIXES or text.lstrip()[0] not in "[{":
        return [[{"role": "user", "content": prompt}] for prompt in plain_prompts(text)]
    return [_try_messages(entry, where) for where, entry in _entries(text, path)]


def plain_prompts(text: str) -> list[str]:
    """Paragraphs if blank lines separate any, else one prompt per line."""
    text = text.replace("\r\n", "\n").strip()
    paragraphs = [part.strip() for part in re.split(r"\n[ \t]*\n", text)]
    return [part for part in (paragraphs if len(paragraphs) > 1 else text.split("\n")) if part.strip()]


def _entries(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        whole = json.loads(text)
    except ValueError as error:
        if text.lstrip()[0] == "[":
            raise ProfileError(f"{path}: not JSON: {error} (plain text: name it .txt)") from None
    else:
        entries = whole if isinstance(whole, list) else [whole]
        yield from ((f"{path}: entry {number}", entry) for number, entry in enumerate(entries, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except ValueError as error:
                raise ProfileError(f"{path}:{number}: not JSON: {error}") from None


def _try_messages(entry: Any, where: str) -> list[dict[str, str]] | Skip:
    turns = (entry.get("conversations") or entry.get("messages") or []) if isinstance(entry, dict) else None
    known = isinstance(entry, dict) and ("conversations" in entry or "messages" in entry)
    if not known or not isinstance(turns, list):
        raise ProfileError(f'{where}: needs a list under "conversations" or "messages"')
    try:
        return _messages(turns)
    except Skip as skip:
        return skip


def _messages(turns: list[Any]) -> list[dict[str, str]]:
    messages = [_message(turn) for turn in turns]
    while messages and messages[-1]["role"] != "user":
        messages.pop()  # the answer is what the server is asked for
    if not messages:
        raise Skip("no user turn")
    if messages[0]["role"] == "assistant":
        raise Skip("starts with an answer")
    return messages


def _message(turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise Skip("a turn that is not an object")
    role, content = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise Skip(f"role {str(role)[:20]!r}")
    if isinstance(content, list):  # parts; one without text, such as an image, makes the turn unusable
        found = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = None if None in found else "\n".join(map(str, found))
    if not isinstance(content, str) or not content.strip():
        raise Skip("a turn without text")
    if re.search("[\ud800-\udfff]", content):
        raise Skip("half of a surrogate pair")
    return {"role": ROLES[role.lower()], "content": content}


def convert(path: Path, out: Path, max_tokens: int, limit: int | None) -> Counter[str]:
    """Write `path` as the profile `out`, each up to its last user turn; returns what it skipped."""
    found = conversations(path)
    skipped = Counter(str(item) for item in found if isinstance(item, Skip))
    kept = [item for item in found if not isinstance(item, Skip)][:limit]
    if not kept:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in skipped.most_common(3))
        raise ProfileError(f"{path}: no usable prompt" + (f": {reasons}" if reasons else ""))
    bodies = [{"messages": messages, "max_tokens": max_tokens} for messages in kept]
    rows = [{"id": f"{out.stem}-{n:04d}", "weight": 1, "body": body} for n, body in enumerate(bodies, 1)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out, "x", encoding="utf-8", newline="\n") as file:
            file.write(lines)
    except FileExistsError:
        raise ProfileError(f"{out} is there already; remove it or name another file with --out") from None
    except OSError as error:
        raise ProfileError(f"{out}: cannot be written: {error.strerror}") from None
    return skipped


def describe(name: str | Path) -> str:
    """The summary of a profile as a few lines for people."""
    facts = summary(load(name))
    first = f"{facts['name']}: {facts['prompts']} prompts, total weight {facts['total_weight']:g}"
    lines = [f"{first}, {facts['chinese']} mostly Chinese, {facts['images']} images"]
    labels = {"chars": "characters", "approx_tokens": "tokens (guess)", "max_tokens": "max_tokens"}
    for key, label in labels.items():
        if spread := facts[key]:
            lines.append(f"  {label:<15} " + "  ".join(f"{k} {v:g}" for k, v in spread.items()))
    return "\n".join(lines)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 2 for bad input, told in one line."""
    parser = argparse.ArgumentParser(prog="python -m tokenswarm.prompts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="lengths of a profile")
    show.add_argument("name", help="a profile's name (chat) or path")
    make = commands.add_parser("convert", help="ShareGPT-style JSON or JSONL, or plain text, to a profile")
    make.add_argument("file", type=Path)
    make.add_argument("--out", type=Path, default=Path("profiles/mine.jsonl"))
    make.add_argument("--max-tokens", type=_positive, default=256)
    make.add_argument("--limit", type=_positive, help="keep only the first N usable prompts")
    args = parser.parse_args(argv)
    try:
        if args.command == "convert":
            skipped = convert(args.file, args.out, args.max_tokens, args.limit)
            for reason, count in skipped.most_common():
                print(f"skipped {count}: {reason}")
            print(f"wrote {args.out}")
        print(describe(args.name if args.command == "show" else args.out))
    except ProfileError as error:
        parser.exit(2, f"{error}\n")
    return 0
