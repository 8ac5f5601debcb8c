"""Profiles: profiles/*.jsonl read, checked line by line, and summed up."""

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm import images

ROOT = Path(__file__).resolve().parent.parent
KEYS = ("id", "weight", "body", "expect")
VERDICTS = ("safe", "controversial", "unsafe")
MAX_WEIGHT = 1e9
CJK = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")


class ProfileError(ValueError):
    """A profile that cannot be used; the message is one line that names file, line and fault."""


@dataclass(frozen=True)
class Prompt:
    """One line of a profile."""

    id: str
    weight: float
    body: dict[str, Any]
    expect: str | None = None


@dataclass(frozen=True)
class Profile:
    """A checked profile; sha256 is that of the file's bytes followed by those of the images it names."""

    name: str
    path: Path | None
    sha256: str
    prompts: tuple[Prompt, ...]


def find(name: str | Path) -> Path:
    """The file of a profile: a path as it is, or a bare name in profiles/ of the project, then of the cwd."""
    bare = isinstance(name, str) and not name.endswith(".jsonl") and Path(name).name == name
    folders = [ROOT / "profiles", Path("profiles")]
    for path in [folder / f"{name}.jsonl" for folder in folders] if bare else [Path(name)]:
        if path.is_file():
            return path
    have = sorted({path.stem for folder in folders for path in folder.glob("*.jsonl")})
    raise ProfileError(f"no profile {str(name)!r}: give a .jsonl file or one of: {', '.join(have)}")


def load(name: str | Path) -> Profile:
    """Read and check a profile given by path or bare name; every fault is a ProfileError of one line."""
    path = find(name)
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(f"{path}:{line}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    prompts = tuple(_prompts(text, path))
    if not prompts:
        raise ProfileError(f'{path}: no prompts; a line is {{"id": ..., "body": {{...}}}}')
    return Profile(path.stem, path, _sha256(data, prompts, path.parent), prompts)


def _sha256(data: bytes, prompts: tuple[Prompt, ...], folder: Path) -> str:
    digest = hashlib.sha256(data)
    for name in sorted({part["url"] for prompt in prompts for part in image_parts(prompt.body)}):
        digest.update((folder / name).read_bytes())
        images.pixels_vary(folder / name)  # takes the image apart now, so that no request has to wait for it
    return digest.hexdigest()


def _prompts(text: str, path: Path) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    # Not splitlines(): a prompt may hold U+2028 or other characters which that takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, path.parent)
            if prompt.id in seen:
                raise ProfileError(f"id {prompt.id!r} was used in line {seen[prompt.id]}; ids must differ")
        except ProfileError as error:
            raise ProfileError(f"{path}:{number}: {error}") from None
        seen[prompt.id] = number
        yield prompt


def _prompt(line: str, folder: Path) -> Prompt:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ProfileError("half of a surrogate pair (\\ud800 to \\udfff), not valid in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ProfileError('not a JSON object; a line is {"id": ..., "weight": ..., "body": {...}}')
    if unknown := sorted(set(row) - set(KEYS)):
        raise ProfileError(f"unknown key {unknown[0]!r}; known: {', '.join(KEYS)} (the rest goes into body)")
    _check_row(row)
    _check_body(row["body"], folder)
    return Prompt(row["id"], row.get("weight", 1), row["body"], row.get("expect"))


def _check_row(row: dict[str, Any]) -> None:
    for key in ("id", "body"):
        if key not in row:
            raise ProfileError(f"{key} is missing")
    if not isinstance(row["id"], str) or not row["id"].strip():
        raise ProfileError(f"id must be a text that is not empty, got {row['id']!r}")
    weight = row.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
        raise ProfileError(f"weight must be a number above 0 (at most 1e9), got {weight!r}")
    if row.get("expect") not in (None, *VERDICTS):
        raise ProfileError(f"expect must be one of {', '.join(VERDICTS)}, got {row['expect']!r}")
    if not isinstance(row["body"], dict):
        raise ProfileError(f"body must be an object, got {type(row['body']).__name__}")


def _check_body(body: dict[str, Any], folder: Path) -> None:
    for key in ("max_tokens", "min_tokens"):
        if key in body and (type(body[key]) is not int or body[key] < 1):
            raise ProfileError(f"{key} must be a whole number above 0, got {body[key]!r}")
    if "messages" in body:
        _check_messages(body["messages"], folder)
        return
    if "documents" in body and not _texts(body["documents"]):
        raise ProfileError("documents must be a list of texts")
    for key in ("prompt", "input", "query"):
        if key in body and not _texts([body[key]] if isinstance(body[key], str) else body[key]):
            raise ProfileError(f"{key} must be a text or a list of texts, none of them empty")
    if not {"prompt", "input"} & set(body) and not {"query", "documents"} <= set(body):
        raise ProfileError("body has no prompt: it needs messages, prompt, input, or query with documents")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v.strip() for v in value)


def _check_messages(messages: Any, folder: Path) -> None:
    if not isinstance(messages, list) or not messages:
        raise ProfileError("messages must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ProfileError("every message must be an object with a role and a content")
    if not isinstance(messages[0].get("content"), str | list) or not messages[0]["content"]:
        raise ProfileError("the first message has no content; it must be a text or a list of parts")
    for part in (part for message in messages for part in _parts(message)):
        if not isinstance(part, dict):
            raise ProfileError('a content part must be an object such as {"type": "text", "text": ...}')
        if part.get("type") == "text" and not isinstance(part.get("text"), str):
            raise ProfileError("a text part must hold a text")
        if part.get("type") == "image_url":
            _check_image(part.get("image_url"), folder)


def _check_image(image: Any, folder: Path) -> None:
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        raise ProfileError('an image part must hold "image_url": {"url": "FILE"}')
    if url.startswith(("http:", "https:", "data:")):
        # The server's download time is not the GPU's, and a fixed data URI is answered from its image cache.
        raise ProfileError(f"image {url[:40]!r} must be a file beside the profile, not a URL")
    if not (folder / url).is_file():
        raise ProfileError(f"image file {url!r} not found in {folder}")
    if images.kind(folder / url) is None:
        raise ProfileError(f"image file {url!r} is neither PNG nor JPEG")


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def image_parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The {"url": ...} objects of a body's images, in order."""
    messages = body.get("messages", [])
    return [part["image_url"] for m in messages for part in _parts(m) if part.get("type") == "image_url"]


def texts(body: dict[str, Any]) -> list[str]:
    """All prompt text of a body, one item per message, input, query or document."""
    found: list[str] = []
    for message in body.get("messages", []):
        content = message.get("content")
        if isinstance(content, str):
            found.append(content)
        found += [part["text"] for part in _parts(message) if part.get("type") == "text"]
    for key in ("prompt", "input", "query", "documents"):
        value = body.get(key, [])
        found += [value] if isinstance(value, str) else value
    return found


def approx_tokens(text: str) -> int:
    """A guess without a tokenizer: 0.7 a Chinese, Japanese or Korean character, 0.25 any other."""
    wide = len(CJK.findall(text))
    return math.ceil(0.7 * wide + 0.25 * (len(text) - wide))


def summary(profile: Profile) -> dict[str, Any]:
    """Counts and rough lengths per prompt, unweighted; approx_tokens is a guess and leaves out images."""
    bodies = [prompt.body for prompt in profile.prompts]
    joined = ["".join(texts(body)) for body in bodies]
    return {
        "name": profile.name,
        "prompts": len(bodies),
        "total_weight": sum(prompt.weight for prompt in profile.prompts),
        "images": sum(len(image_parts(body)) for body in bodies),
        "chinese": sum(len(CJK.findall(text)) * 2 > len(text) for text in joined),
        "chars": _spread([len(text) for text in joined]),
        "approx_tokens": _spread([approx_tokens(text) for text in joined]),
        "max_tokens": _spread([body["max_tokens"] for body in bodies if "max_tokens" in body]),
    }


def _spread(values: list[int]) -> dict[str, float] | None:
    """min, median, p95 (nearest rank) and max; None for no values."""
    if not values:
        return None
    ranked = sorted(values)
    p95 = ranked[math.ceil(0.95 * len(ranked)) - 1]
    return {"min": ranked[0], "median": statistics.median(ranked), "p95": p95, "max": ranked[-1]}
