"""Prometheus text, read line by line: a broken line is lost, the others are kept. (stdlib only)"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)")
LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(.)")
Labels = dict[str, str]
Series = dict[str, list[tuple[Labels, float]]]


NAME_END = re.compile(r"[{ \t]")


def parse(text: str, prefixes: tuple[str, ...] = ("",), wanted: frozenset[str] | None = None) -> Series:
    """All finite samples whose name has one of the prefixes (and is wanted), by name; NaN and Inf are unknown."""
    found: Series = {}
    for line in text.splitlines():
        if not line.startswith(prefixes) or line.startswith("#"):
            continue
        if wanted is not None and NAME_END.split(line, maxsplit=1)[0] not in wanted:
            continue
        if not (match := SAMPLE.match(line)):
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            found.setdefault(name, []).append((dict(_labels(labels)) if labels else {}, value))
    return found


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in LABEL.findall(text):
        yield name, ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], value) if "\\" in value else value


def sample(name: str, labels: Labels, value: float) -> str:
    """One line of Prometheus text."""
    inside = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value:.15g}\n" if inside else f"{name} {value:.15g}\n"


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
