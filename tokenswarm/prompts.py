"""Prompts drawn by weight from a profile in seeded streams, and synthetic ones of a wanted length."""

import copy
import hashlib
import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.images import image_data_uri, pixels_vary
from tokenswarm.profiles import Profile, ProfileError, Prompt, image_parts, load, summary

__all__ = [
    "Draw", "Draws", "Profile", "ProfileError", "Prompt", "calibrate", "image_data_uri", "image_parts",
    "inline_images", "load", "pixels_vary", "summary", "synthetic", "synthetic_text",
]  # fmt: skip

NONCE_HEX = 12  # 48 bits: among a million requests of a run two equal nonces have odds of 1 in 500
WORDS = (
    "about above across after again air almost along also animal answer apple area around back ball "
    "bank base because before began being below best better between bird black blue boat body book both "
    "bread bring brother brown build call came car carry cat cause center change child city class clear "
    "close cold color come common correct could country course cross dark day deep did door down draw "
    "dream dress drive dry during each early earth east easy eat end enough even every example eye face "
    "fact fall family far farm fast father feel few field final find fine fire first fish five floor "
    "follow food foot force form found four free friend from front full game garden gave give glass "
    "gold good great green ground group grow half hand happy hard head hear heart "
)


@dataclass(frozen=True)
class Draw:
    """One drawn prompt with a body of its own, free to be changed."""

    prompt: Prompt
    body: dict[str, Any]
    nonce: str | None


class Draws:
    """Prompts drawn by weight, reproducible per (seed, worker, user) and profile.

    The same four draw the same prompts again, so use each (worker, user) for one Draws only in a run, and let
    `worker` be a number or name that the next run has too, not a process id. `run` goes into the nonces alone: a
    second run sends the same prompts under other heads, or the server's prefix cache would answer it.
    """

    def __init__(self, profile: Profile, seed: int, worker: str, user: int, nonce: bool = True,
                 jitter: float = 0.10, run: str = "") -> None:  # fmt: skip
        self.prompts = profile.prompts
        self.weights = list(itertools.accumulate(prompt.weight for prompt in profile.prompts))
        self.stream = json.dumps([profile.name, seed, str(worker), user])
        self.random = random.Random(self.stream)
        self.nonce, self.jitter, self.run, self.count = nonce, jitter, run, 0

    def next(self) -> Draw:
        """The next prompt with a fresh body, its nonce in place and a fixed output length jittered."""
        prompt = self.random.choices(self.prompts, cum_weights=self.weights)[0]
        body = copy.deepcopy(prompt.body)
        self.count += 1
        nonce = self._nonce() if self.nonce else None
        if nonce:
            _put_at_head(body, f"[{nonce}] ")
        if body.get("ignore_eos") is True and "max_tokens" in body:
            _jitter(body, self.jitter, self.random)
        return Draw(prompt, body, nonce)

    def _nonce(self) -> str:
        text = f"{self.run}{self.stream}{self.count}".encode()
        return hashlib.blake2b(text, digest_size=NONCE_HEX // 2).hexdigest()


def _put_at_head(body: dict[str, Any], mark: str) -> None:
    if "messages" not in body:
        for key in ("prompt", "input", "query"):
            if key in body:
                value = body[key]
                body[key] = mark + value if isinstance(value, str) else [mark + text for text in value]
        return
    first = body["messages"][0]
    if isinstance(first["content"], str):
        first["content"] = mark + first["content"]
    elif first["content"][0].get("type") == "text":
        first["content"][0]["text"] = mark + first["content"][0]["text"]
    else:  # an image comes first: the mark must come before it, or the image's tokens are a shared prefix
        first["content"].insert(0, {"type": "text", "text": mark})


def _jitter(body: dict[str, Any], share: float, stream: random.Random) -> None:
    middle = body["max_tokens"]
    low, high = math.ceil(middle * (1 - share) - 1e-9), math.floor(middle * (1 + share) + 1e-9)
    body["max_tokens"] = stream.randint(max(1, low), max(1, high))
    if body.get("min_tokens", 0) > body["max_tokens"]:  # servers refuse min_tokens above max_tokens
        body["min_tokens"] = body["max_tokens"]


def inline_images(draw: Draw, folder: str | Path) -> int:
    """Put data URIs in place of a draw's image files, fresh variants if it has a nonce; returns how many."""
    parts = image_parts(draw.body)
    for index, part in enumerate(parts):
        variant = None if draw.nonce is None else (int(draw.nonce, 16) << 8) + index
        part["url"] = image_data_uri(Path(folder) / part["url"], variant)
    return len(parts)


def synthetic_text(words: int, seed: int) -> str:
    """So many seeded words; `calibrate` needs two measured texts of this kind."""
    return " ".join(random.Random(f"words {seed}").choices(WORDS.split(), k=words))


def synthetic(input_tokens: int, output_tokens: int, count: int, seed: int, tokens_per_word: float,
              overhead: float = 0.0) -> Profile:  # fmt: skip
    """`count` chat prompts of (input_tokens - overhead) / tokens_per_word words and a fixed output length.

    Both factors come from `calibrate`; measure with the nonce on if it will be on, so that overhead holds it.
    """
    if min(input_tokens, output_tokens, count) < 1 or not 0 < tokens_per_word < math.inf:
        raise ProfileError("INPUT_TOKENS, OUTPUT_TOKENS, prompt count and tokens per word must be above 0")
    words = round((input_tokens - overhead) / tokens_per_word)
    if words < 1:
        least = math.ceil(overhead + tokens_per_word)
        raise ProfileError(f"INPUT_TOKENS={input_tokens} is less than one word costs; use {least} or more")
    prompts = []
    for index in range(count):
        message = {"role": "user", "content": synthetic_text(words, seed * 1_000_003 + index)}
        body = {"messages": [message], "max_tokens": output_tokens, "ignore_eos": True}
        prompts.append(Prompt(f"synthetic-{index + 1:04d}", 1, body))
    digest = hashlib.sha256(json.dumps([prompt.body for prompt in prompts]).encode()).hexdigest()
    return Profile(f"synthetic-{input_tokens}x{output_tokens}", None, digest, tuple(prompts))


def calibrate(words: int, usage_tokens: int, words2: int, usage_tokens2: int) -> tuple[float, float]:
    """(tokens per word, overhead tokens per request): the line through two measured prompt_tokens counts."""
    if words == words2:
        raise ProfileError(f"calibration needs two prompts of different length, got {words} words twice")
    per_word = (usage_tokens2 - usage_tokens) / (words2 - words)
    if per_word <= 0:
        raise ProfileError(
            f"the server counted {usage_tokens} tokens for {words} words and {usage_tokens2} for {words2}: "
            "its usage counts do not grow with the prompt, so no prompt length can be aimed at"
        )
    return per_word, usage_tokens - per_word * words


if __name__ == "__main__":
    import sys

    from tokenswarm.convert import main

    sys.exit(main())
