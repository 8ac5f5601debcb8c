"""Images as the vision encoder counts them: one token per 28 x 28 pixels, known by their content."""

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import Any

from simulator import errors

PATCH = 28


@dataclass(slots=True, frozen=True)
class Image:
    """Content key and number of tokens."""

    key: str
    tokens: int


def read_image(image_url: Any) -> Image:
    """An image given as a data: URL."""
    url = image_url.get("url") if isinstance(image_url, dict) else image_url
    if not isinstance(url, str) or not url.startswith("data:image/") or ";base64," not in url:
        raise errors.bad_request("This server takes images only as data:image/...;base64 URLs.", "image_url")
    try:
        data = base64.b64decode(url.partition(";base64,")[2], validate=True)
    except binascii.Error:
        raise errors.bad_request("Failed to load image: invalid base64.", "image_url") from None
    size = png_size(data) or jpeg_size(data)
    if not size or 0 in size:
        raise errors.bad_request("cannot identify image file: not a PNG or JPEG.", "image_url")
    width, height = size
    return Image(f"<image {hash(data)}>", -(-width // PATCH) * -(-height // PATCH))


def png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the first start-of-frame segment."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None
