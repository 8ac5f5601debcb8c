"""Error answers with vLLM's bodies."""

import json
from typing import Any

import msgspec


class ApiError(Exception):
    """An answer other than 200: its status and JSON body."""

    def __init__(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers


def error(status: int, kind: str, message: str, param: str | None = None) -> ApiError:
    detail = {"message": message, "type": kind, "param": param, "code": status}
    return ApiError(status, msgspec.json.encode({"error": detail}))


def bad_request(message: str, param: str | None = None, value: Any = None) -> ApiError:
    if param is not None:
        message += f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return error(400, "BadRequestError", message, param)


def _invalid(kind: str, loc: str, msg: str, given: Any, context: str = "") -> ApiError:
    shown = f"<dict of {len(given)} items>" if isinstance(given, dict) else given
    item = f"{{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}', 'input': {shown!r}{context}}}"
    return error(400, "Bad Request", f"1 validation error:\n  {item}", loc)


def missing(body: dict[str, Any], field: str) -> ApiError:
    return _invalid("missing", f"body.{field}", "Field required", body)


def wrong_type(field: str, kind: str, msg: str, given: Any) -> ApiError:
    return _invalid(kind, f"body.{field}", msg, given)


def not_an_integer(field: str, given: Any) -> ApiError:
    if isinstance(given, str):
        msg = "Input should be a valid integer, unable to parse string as an integer"
        return wrong_type(field, "int_parsing", msg, given)
    return wrong_type(field, "int_type", "Input should be a valid integer", given)


def bad_json(raw: bytes) -> ApiError:
    """What the standard parser says about it, as FastAPI reports it."""
    try:
        json.loads(raw)
        position, reason = 0, "Expecting value"
    except json.JSONDecodeError as exc:
        position, reason = exc.pos, exc.msg
    except UnicodeDecodeError as exc:
        position, reason = exc.start, "invalid UTF-8"
    context = f", 'ctx': {{'error': {reason!r}}}"
    return _invalid("json_invalid", f"body.{position}", "JSON decode error", {}, context)


def wrong_model(name: str, valid: list[str]) -> ApiError:
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(valid)}."
    return error(404, "NotFoundError", message, "model")


def too_long(max_model_len: int) -> ApiError:
    least = max_model_len + 1  # like vLLM, stop counting there
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least {least}"
        " input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input"
        " prompt."
    )
    return bad_request(message, "input_tokens", least)


def too_long_with_output(max_model_len: int, prompt: int, output: int) -> ApiError:
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, you requested {output} output tokens"
        f" and your prompt contains at least {max_model_len - output + 1} input tokens, for a total of at least"
        f" {max_model_len + 1} tokens. Please reduce the length of the input prompt or the number of requested output"
        " tokens."
    )
    return bad_request(message, "input_tokens", max_model_len - output + 1)


def engine_failed() -> ApiError:
    return error(500, "InternalServerError", ENGINE_FAILED)


def busy() -> ApiError:
    message = (
        "The engine is currently busy and cannot accept new requests."
        " Please try again later or on a different instance."
    )
    return error(503, "Service Unavailable", message)


def not_found() -> ApiError:
    return ApiError(404, b'{"detail":"Not Found"}')


def method_not_allowed(allowed: str) -> ApiError:
    return ApiError(405, b'{"detail":"Method Not Allowed"}', ((b"allow", allowed.encode()),))


def unauthorized() -> ApiError:
    return ApiError(401, b'{"error":"Unauthorized"}')


ENGINE_FAILED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
INBAND_ERROR = json.dumps(
    {"error": {"message": ENGINE_FAILED, "type": "InternalServerError", "param": None, "code": 500}}
)


def not_an_object(given: Any) -> ApiError:
    return _invalid("dict_type", "body", "Input should be a valid dictionary", given)
