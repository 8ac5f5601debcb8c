"""/v1/chat/completions and /v1/completions."""

import asyncio
import math
import random
from typing import Any

import msgspec

from simulator import errors, faults, guard, prompts, text
from simulator.box import Box, Call, Model
from simulator.engine import Seq
from simulator.stream import FINGERPRINT, Collect, Events, Reply, Stream, usage

SIGMA = 0.4  # spread of output lengths: standard deviation of their logarithm
VOICES = [[msgspec.json.encode(word) for word in text.words(voice)] for voice in (text.ENGLISH, text.CHINESE)]
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"vary", b"Origin")]
# Fields that a whole answer has even if they are null
NO_USAGE = dict.fromkeys(
    ("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
)
CHAT_REST = dict.fromkeys(
    ("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics")
)
COMPLETION_REST = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))


async def chat(call: Call) -> bytes | None:
    body = call.body
    model = call.box.model(body, ("llm", "guard", "vlm"), "Chat Completions")
    if "messages" not in body:
        raise errors.missing(body, "messages")
    check(body)
    prompt = prompts.from_messages(body["messages"], sees_images=model.kind == "vlm")
    return await _generate(call, model, prompt, True)


async def completions(call: Call) -> bytes | None:
    body = call.body
    model = call.box.model(body, ("llm", "guard", "vlm"), "Completions")
    if "prompt" not in body:
        raise errors.missing(body, "prompt")
    check(body)
    body.setdefault("max_tokens", 16)
    return await _generate(call, model, prompts.from_completion(body["prompt"]), False)


def check(body: dict[str, Any]) -> None:
    """Refuse what vLLM refuses, in its words."""
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(name)
        if value is None:
            body.pop(name, None)
        elif not isinstance(value, int) or isinstance(value, bool):
            raise errors.not_an_integer(name, value)
        elif value < 1:
            raise errors.bad_request(f"{name} must be at least 1, got {value}.", name, value)
    if body.get("n", 1) != 1:
        raise errors.bad_request("This server gives one choice a request.", "n", body["n"])
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise errors.wrong_type("stream_options", "model_type", "Input should be an object", options)
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise errors.bad_request(
            f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature)
        )
    if options is not None and not body.get("stream"):
        raise errors.bad_request("Stream options can only be defined when `stream=True`.", "stream_options")


def output_limit(body: dict[str, Any], prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the reply may have: max_tokens, or what is left of the context."""
    if prompt_tokens >= max_model_len:
        raise errors.too_long(max_model_len)
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    asked = body.get(name)
    if asked is None:
        return max_model_len - prompt_tokens
    if asked > max_model_len:
        raise errors.bad_request(
            f"{name}={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens.",
            name,
            asked,
        )
    if prompt_tokens + asked > max_model_len:
        raise errors.too_long_with_output(max_model_len, prompt_tokens, asked)
    return asked


def draw_tokens(rng: random.Random, mean: float) -> int:
    """Output length, lognormal with this mean: exp(N(ln mean - sigma^2/2, sigma)), at least 1."""
    return max(1, round(rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)))


def plan_reply(box: Box, model: Model, prompt: prompts.Prompt, body: dict[str, Any], limit: int) -> Reply:
    """What to say, how long, and why it ends."""
    wish, start = draw_tokens(model.rng, box.output_tokens), model.rng.randrange(1000)
    if model.kind == "guard":
        response = last_answer(body) if prompt.last_role == "assistant" else None
        words = [word for line in guard.answer(prompt.text, response).splitlines(True) for word in text.words(line)]
        pieces, wish, start = [msgspec.json.encode(word) for word in words], len(words) + 1, 0
    else:
        pieces = VOICES[text.is_chinese(prompt.text)]
    if body.get("ignore_eos"):
        return Reply(pieces, start, limit, "length")
    return Reply(pieces, start, min(wish, limit), "stop" if wish <= limit else "length")


def last_answer(body: dict[str, Any]) -> str:
    content = body["messages"][-1].get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if "text" in part)
    return content or ""


async def _generate(call: Call, model: Model, prompt: prompts.Prompt, is_chat: bool) -> bytes | None:
    box, body = call.box, call.body
    limit = output_limit(body, len(prompt.tokens), model.max_model_len)
    reply = plan_reply(box, model, prompt, body, limit)
    fault = faults.draw(box.rates, model.rng, reply.tokens)
    if fault and fault.kind == "error":
        raise errors.engine_failed()
    box.admit(model)
    encoder_tokens = model.see(prompt.images)
    id = call.id("chatcmpl" if is_chat else "cmpl")
    seq = Seq(id, len(prompt.tokens), reply.tokens, reply.finish, text.block_hashes(prompt.tokens), encoder_tokens)
    model.stats.asked(limit, body)
    if body.get("stream"):
        events = Events(is_chat, id, call.created, model.name, reply, body.get("stream_options") or {})
        events.prompt_tokens = seq.prompt_tokens
        await _stream(call, model, seq, events, fault)
        return None
    return await _whole(call, model, seq, reply, fault, is_chat)


async def _stream(call: Call, model: Model, seq: Seq, events: Events, fault: faults.Fault | None) -> None:
    await call.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    # Tokens bypass uvicorn's awaitable send (a task switch per token); the framing is the same.
    transport = call.send.__self__.transport
    seq.listener = stream = Stream(transport, events, fault, call.box.rates.stall_s)
    model.pace.submit(seq, call.arrival)
    outcome = await call.finished(model, [seq], stream.done)
    if outcome == "end":
        transport.write(events.end(seq.cached))
    elif outcome == "inband":
        transport.write(b"e\r\ndata: [DONE]\n\n\r\n")
    if outcome == "cut":
        await call.receive()  # until uvicorn has noticed too
    elif outcome != "gone":
        await call.send({"type": "http.response.body", "body": b""})


async def _whole(
    call: Call, model: Model, seq: Seq, reply: Reply, fault: faults.Fault | None, is_chat: bool
) -> bytes | None:
    seq.listener = collect = Collect()
    model.pace.submit(seq, call.arrival)
    if await call.finished(model, [seq], collect.done) == "gone":
        return None
    if fault and fault.kind == "inband":
        raise errors.engine_failed()
    if fault and fault.kind == "cut":
        call.send.__self__.transport.close()
        await call.receive()
        return None
    if fault and fault.kind == "stall":
        await asyncio.sleep(call.box.rates.stall_s)
    counts = NO_USAGE | usage(seq.prompt_tokens, reply.tokens, seq.cached)
    answer = _chat_answer(reply) if is_chat else _completion_answer(reply)
    return msgspec.json.encode(
        {
            "id": seq.id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": call.created,
            "model": model.name,
            "choices": [answer],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": counts,
            **(CHAT_REST if is_chat else COMPLETION_REST),
        }
    )


def _chat_answer(reply: Reply) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": reply.text(),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": reply.finish,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _completion_answer(reply: Reply) -> dict[str, Any]:
    return {
        "index": 0,
        "text": reply.text(),
        "logprobs": None,
        "finish_reason": reply.finish,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }
