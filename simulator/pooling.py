"""/v1/embeddings, /rerank, /score, /classify and /v1/moderations: answers without generated tokens."""

import base64
import functools
import math
import random
import re
import struct
import zlib
from typing import Any

import msgspec

from simulator import errors, guard, text
from simulator.box import Call, Model
from simulator.engine import Seq
from simulator.stream import Collect

DIMENSIONS = 1024
VECTORS = 64  # different embeddings; a text's checksum picks one
EMBEDDING_USAGE = {"completion_tokens": 0, "prompt_tokens_details": None, "completion_tokens_details": None}
PAIR_OVERHEAD = 3  # separator tokens around a query and a document


async def embeddings(call: Call) -> bytes | None:
    body = call.body
    model = call.box.model(body, ("embedding",), "Embeddings")
    inputs = as_inputs(body, "input")
    dimensions = body.get("dimensions") or DIMENSIONS
    if not isinstance(dimensions, int) or not 1 <= dimensions <= DIMENSIONS:
        raise errors.bad_request(f"dimensions must be from 1 to {DIMENSIONS}.", "dimensions", dimensions)
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise errors.bad_request("encoding_format must be float or base64.", "encoding_format", form)
    tokens = [text.pieces(item) for item in inputs]
    if not await compute(call, model, "embd", tokens):
        return None
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": vector(zlib.crc32(item.encode()) % VECTORS, dimensions, form),
        }
        for index, item in enumerate(inputs)
    ]
    return respond(call, model, "embd", "list", data, tokens, EMBEDDING_USAGE)


@functools.cache
def base_vector() -> list[float]:
    rng = random.Random(0)
    return [rng.gauss(0, 1) for _ in range(DIMENSIONS)]


@functools.lru_cache(maxsize=4 * VECTORS)
def vector(number: int, dimensions: int, form: str) -> msgspec.Raw:
    """A unit vector as JSON, the same for the same number: one random vector, turned by so many places."""
    values = (base_vector()[number:] + base_vector()[:number])[:dimensions]
    length = math.sqrt(sum(value * value for value in values))
    packed = struct.pack(f"<{dimensions}f", *(value / length for value in values))
    if form == "base64":
        return msgspec.Raw(msgspec.json.encode(base64.b64encode(packed).decode()))
    return msgspec.Raw(msgspec.json.encode(struct.unpack(f"<{dimensions}f", packed)))


async def rerank(call: Call) -> bytes | None:
    body = call.body
    model = call.box.model(body, ("rerank",), "Rerank")
    query = as_inputs(body, "query")[0]
    documents = as_inputs(body, "documents")
    top_n = body.get("top_n") or len(documents)
    if not isinstance(top_n, int) or top_n < 0:
        raise errors.not_an_integer("top_n", top_n)
    tokens = [text.pieces(query + document) + ["</s>"] * PAIR_OVERHEAD for document in documents]
    if not await compute(call, model, "score", tokens):
        return None
    scores = [relevance(query, document) for document in documents]
    results = [
        {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": scores[index]}
        for index in sorted(range(len(scores)), key=lambda i: -scores[i])
    ]
    return msgspec.json.encode(
        {"id": call.id("score"), "model": model.name, "usage": counts(tokens), "results": results[:top_n]}
    )


async def score(call: Call) -> bytes | None:
    """One query against many documents, or pair by pair when there are as many of each."""
    body = call.body
    model = call.box.model(body, ("rerank", "guard"), "Score")
    firsts = as_inputs(body, "text_1" if "text_1" in body else "queries")
    seconds = as_inputs(body, "text_2" if "text_2" in body else "documents")
    firsts = firsts * len(seconds) if len(firsts) == 1 else firsts
    if len(firsts) != len(seconds):
        raise errors.bad_request("Input lengths must be either 1:1, 1:N or N:N")
    tokens = [text.pieces(a + b) + ["</s>"] * PAIR_OVERHEAD for a, b in zip(firsts, seconds, strict=True)]
    if not await compute(call, model, "score", tokens):
        return None
    judge = danger if model.kind == "guard" else relevance
    data = [
        {"index": index, "object": "score", "score": judge(a, b)}
        for index, (a, b) in enumerate(zip(firsts, seconds, strict=True))
    ]
    return respond(call, model, "score", "list", data, tokens, {"completion_tokens": 0})


def danger(prompt: str, _: str) -> float:
    """0 to 1: how unsafe the first text is."""
    return {"Unsafe": 0.96, "Controversial": 0.5, "Safe": 0.03}[guard.judge(prompt)[0]]


def relevance(query: str, document: str) -> float:
    """0 to 1: the share of the query's words that the document has, pulled off the ends."""
    wanted = set(re.findall(r"\w+", query.lower())) if not text.is_chinese(query) else set(query)
    shared = sum(word in document.lower() for word in wanted) / max(1, len(wanted))
    wobble = zlib.crc32(document.encode()) % 1000 / 1e5  # so that documents rarely tie
    return round(0.02 + 0.95 * shared + wobble, 6)


async def classify(call: Call) -> bytes | None:
    body = call.body
    model = call.box.model(body, ("guard",), "Classification")
    inputs = as_inputs(body, "input")
    tokens = [text.pieces(item) for item in inputs]
    if not await compute(call, model, "classify", tokens):
        return None
    labels = ("Safe", "Controversial", "Unsafe")
    data = [
        {
            "index": index,
            "label": label,
            "probs": [0.96 if name == label else 0.02 for name in labels],
            "num_classes": len(labels),
        }
        for index, label in enumerate(guard.judge(item)[0] for item in inputs)
    ]
    return respond(call, model, "classify", "list", data, tokens, {"completion_tokens": 0})


async def moderations(call: Call) -> bytes | None:
    """OpenAI's moderation form; vLLM itself has no such route."""
    body = call.body
    model = call.box.model(body, ("guard",), "Moderations")
    inputs = as_inputs(body, "input")
    if not await compute(call, model, "modr", [text.pieces(item) for item in inputs]):
        return None
    results = []
    for verdict, found in map(guard.judge, inputs):
        categories = {name: name in found for name in guard.CATEGORIES}
        scores = {name: 0.97 if hit else 0.01 for name, hit in categories.items()}
        results.append({"flagged": verdict == "Unsafe", "categories": categories, "category_scores": scores})
    return msgspec.json.encode({"id": call.id("modr"), "model": model.name, "results": results})


def as_inputs(body: dict[str, Any], name: str) -> list[str]:
    """Texts from a string, a list of strings or {"text"} objects, or token ids."""
    given = body.get(name)
    if given is None:
        raise errors.missing(body, name)
    if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
        given = [given]
    items = given if isinstance(given, list) else [given]
    texts = [as_text(item) for item in items]
    if not texts or None in texts:
        raise errors.bad_request(f"{name} must be a string, token ids, or a list of these, not empty.", name)
    return texts  # type: ignore[return-value]


def as_text(item: Any) -> str | None:
    if isinstance(item, dict):
        item = item.get("text")
    if isinstance(item, list) and all(isinstance(token, int) for token in item):
        return "".join(chr(0x4E00 + token % 20_000) for token in item)  # one pretend token each
    return item if isinstance(item, str) else None


async def compute(call: Call, model: Model, prefix: str, prompts: list[list[str]]) -> bool:
    """Run every prompt through the engine's prefill; False if the client left."""
    box = call.box
    if any(len(tokens) > model.max_model_len for tokens in prompts):
        raise errors.too_long(model.max_model_len)
    if model.rng.random() < box.rates.error:
        raise errors.engine_failed()
    box.admit(model)
    collect = Collect(len(prompts))
    id = call.id(prefix)
    seqs = [
        Seq(f"{id}-{index}", max(1, len(tokens)), 0, "stop", listener=collect) for index, tokens in enumerate(prompts)
    ]
    for seq in seqs:
        model.pace.submit(seq, call.arrival)
    return await call.finished(model, seqs, collect.done) == "end"


def counts(prompts: list[list[str]]) -> dict[str, Any]:
    total = sum(map(len, prompts))
    return {"prompt_tokens": total, "total_tokens": total}


def respond(
    call: Call,
    model: Model,
    prefix: str,
    kind: str,
    data: list[dict[str, Any]],
    prompts: list[list[str]],
    rest: dict[str, Any],
) -> bytes:
    return msgspec.json.encode(
        {
            "id": call.id(prefix),
            "object": kind,
            "created": call.created,
            "model": model.name,
            "data": data,
            "usage": counts(prompts) | rest,
        }
    )
