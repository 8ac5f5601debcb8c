"""From a request's messages or prompt to pretend tokens, in the manner of a ChatML template."""

from dataclasses import dataclass, field
from typing import Any

from simulator import errors, text
from simulator.images import Image, read_image


@dataclass(slots=True)
class Prompt:
    """Tokens of a prompt, its plain text, and the images in it."""

    tokens: list[str] = field(default_factory=list)
    text: str = ""
    images: list[Image] = field(default_factory=list)
    last_role: str = "user"


def from_messages(messages: Any, sees_images: bool = False, generation_prompt: bool = True) -> Prompt:
    """A chat: 5 tokens around each message, 3 to open the answer."""
    if not isinstance(messages, list):
        raise errors.wrong_type("messages", "list_type", "Input should be a valid list", messages)
    if not messages:
        raise errors.bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt = Prompt()
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise errors.bad_request("Every message must be an object with a role.", "messages")
        prompt.last_role = message["role"]
        prompt.tokens += ["<|im_start|>", message["role"], "\n"]
        _add_content(prompt, message.get("content"), sees_images)
        prompt.tokens += ["<|im_end|>", "\n"]
    if generation_prompt:
        prompt.tokens += ["<|im_start|>", "assistant", "\n"]
    return prompt


def _add_content(prompt: Prompt, content: Any, sees_images: bool) -> None:
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            prompt.text += part["text"] + "\n"
            prompt.tokens += text.pieces(part["text"])
        elif isinstance(part, dict) and part.get("type") == "image_url":
            if not sees_images:
                raise errors.bad_request("At most 0 image(s) may be provided in one prompt.")
            image = read_image(part.get("image_url"))
            prompt.images.append(image)
            prompt.tokens += ["<|vision_start|>", *[image.key] * image.tokens, "<|vision_end|>"]
        else:
            raise errors.bad_request("Message content must be text, or parts of type text or image_url.", "messages")


def from_completion(given: Any) -> Prompt:
    """A plain prompt: text, token ids, or a list holding one of these."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if given in ("", []):
        raise errors.bad_request("The decoder prompt cannot be empty", "prompt")
    if isinstance(given, str):
        return Prompt(text.pieces(given), given)
    if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
        return Prompt([str(token) for token in given])
    raise errors.bad_request("This server takes one prompt a request: a string or a list of token ids.", "prompt")
