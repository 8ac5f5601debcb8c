"""The HTTP face: a raw ASGI app with vLLM's routes."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from simulator import errors, exposition, generate, pooling, prompts, text
from simulator.box import Box, Call

VERSION = "0.32.0+simulator"
JSON = b"application/json"
METRICS = b"text/plain; version=1.0.0; charset=utf-8"
Handler = Callable[[Call], Awaitable[bytes | None]]
PERMISSION = {
    "id": "",
    "object": "model_permission",
    "created": 0,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


async def health(call: Call) -> bytes:
    return b""


async def version(call: Call) -> bytes:
    return msgspec.json.encode({"version": VERSION})


async def metrics(call: Call) -> bytes:
    return await exposition.render(call.box)


async def models(call: Call) -> bytes:
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [
                {
                    "id": model.name,
                    "object": "model",
                    "created": call.box.created,
                    "owned_by": "vllm",
                    "root": f"simulator/{model.name}",
                    "parent": None,
                    "max_model_len": model.max_model_len,
                    "permission": [PERMISSION | {"id": f"modelperm-{model.name}", "created": call.box.created}],
                }
                for model in call.box.models
            ],
        }
    )


async def tokenize(call: Call) -> bytes:
    body = call.body
    model = call.box.model(body, ("llm", "guard", "vlm", "embedding", "rerank"), "Tokenize")
    if "messages" in body:
        opened = body.get("add_generation_prompt", True)
        tokens = prompts.from_messages(body["messages"], model.kind == "vlm", opened).tokens
    elif isinstance(body.get("prompt"), str):
        tokens = text.pieces(body["prompt"])
    else:
        raise errors.missing(body, "prompt")
    strings = tokens if body.get("return_token_strs") else None
    return msgspec.json.encode(
        {
            "count": len(tokens),
            "max_model_len": model.max_model_len,
            "tokens": [text.token_id(token) for token in tokens],
            "token_strs": strings,
        }
    )


GET: dict[str, Handler] = {"/health": health, "/version": version, "/metrics": metrics, "/v1/models": models}
POST: dict[str, Handler] = {
    "/v1/chat/completions": generate.chat,
    "/v1/completions": generate.completions,
    "/tokenize": tokenize,
    "/v1/embeddings": pooling.embeddings,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), pooling.rerank),
    **dict.fromkeys(("/score", "/v1/score"), pooling.score),
    "/classify": pooling.classify,
    "/v1/moderations": pooling.moderations,
}


async def read_body(call: Call) -> dict[str, Any]:
    raw, more = b"", True
    while more:
        message = await call.receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.bad_json(raw) from None
    if not isinstance(body, dict):
        raise errors.not_an_object(body)
    return body


def authorize(call: Call) -> None:
    """vLLM asks for the key under /v1 only."""
    key = call.box.api_key
    if key and call.scope["path"].startswith("/v1") and call.header(b"authorization") != f"Bearer {key}":
        raise errors.unauthorized()


async def answer(call: Call) -> bytes | None:
    method, path = call.scope["method"], call.scope["path"]
    authorize(call)
    if path in GET:
        if method not in ("GET", "HEAD"):
            raise errors.method_not_allowed("GET")
        return await GET[path](call)
    if path not in POST:
        raise errors.not_found()
    if method != "POST":
        raise errors.method_not_allowed("POST")
    call.body = await read_body(call)
    return await POST[path](call)


def make_app(box: Box) -> Callable[[dict[str, Any], Any, Any], Awaitable[None]]:
    """The ASGI application that serves this box."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        call = Call(box, scope, receive, send)
        status = 200
        extra: tuple[tuple[bytes, bytes], ...] = ()
        try:
            body = await answer(call)
        except errors.ApiError as exc:
            status, body, extra = exc.status, exc.body, exc.headers
        if body is None:
            return  # it was streamed, or nobody is there any more
        kind = METRICS if scope["path"] == "/metrics" else JSON
        headers = [*extra, (b"content-length", str(len(body)).encode())]
        headers += [(b"content-type", kind)] if body else []
        headers.append((b"vary", b"Origin"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
