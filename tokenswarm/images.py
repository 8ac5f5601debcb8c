"""Images of a profile as base64 data URIs, changed a little so that no server cache can answer."""

import base64
import functools
import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
JPEG_MAGIC = b"\xff\xd8\xff"
MARK_BYTES = 32  # bytes at the end of the last pixel row that a variant changes: 11 RGB pixels


class _Png:
    """A PNG split so that a variant costs one row: the rows before the last are compressed once."""

    def __init__(self, head: bytes, rows: bytes, last_row: bytes) -> None:
        self.head, self.last_row = head, last_row
        self.packer = zlib.compressobj(6)
        self.packed = self.packer.compress(rows)

    def variant(self, mark: bytes) -> bytes:
        # A row's own filter only runs to the right, so the last bytes of the last row touch no other pixel.
        keep = max(1, len(self.last_row) - len(mark))  # byte 0 names the filter and stays
        tail = bytes(a ^ b for a, b in zip(self.last_row[keep:], mark, strict=False))
        packer = self.packer.copy()
        data = self.packed + packer.compress(self.last_row[:keep] + tail) + packer.flush()
        return self.head + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(PNG_MAGIC)
    while at + 12 <= len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def _split(png: bytes) -> _Png | None:
    """The PNG ready for new pixels, or None where it cannot be (palette, interlaced, < 8 bit, cut)."""
    chunks = list(_chunks(png))
    if not chunks or chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13:
        return None
    _, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth not in (8, 16) or color == 3 or interlaced or not height:
        return None
    try:
        raw = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    except zlib.error:
        return None
    if len(raw) % height or len(raw) == 0:
        return None
    row = len(raw) // height
    before = itertools.takewhile(lambda chunk: chunk[0] != b"IDAT", chunks)
    return _Png(PNG_MAGIC + b"".join(_chunk(*c) for c in before), raw[:-row], raw[-row:])


@functools.lru_cache(maxsize=256)
def _read(path: str) -> tuple[bytes, _Png | None]:
    data = Path(path).read_bytes()
    return data, _split(data) if data.startswith(PNG_MAGIC) else None


def kind(path: str | Path) -> str | None:
    """ "png", "jpeg", or None for a file that is neither (told by its first bytes, not its name)."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head == PNG_MAGIC:
        return "png"
    return "jpeg" if head.startswith(JPEG_MAGIC) else None


def pixels_vary(path: str | Path) -> bool:
    """True if variants differ in decoded pixels, False if only in metadata (a cache by pixels may answer)."""
    return _read(str(path))[1] is not None


def _with_comment(data: bytes, mark: bytes) -> bytes:
    """The same pixels in other bytes: a PNG tEXt chunk after IHDR, or a JPEG COM segment at its start."""
    text = mark.hex().encode()
    if data.startswith(PNG_MAGIC):
        return data[:33] + _chunk(b"tEXt", b"Comment\0" + text) + data[33:]
    return data[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + data[2:]


def image_data_uri(path: str | Path, variant: int | None) -> str:
    """The image as a base64 data URI: a few corner pixels per variant, or the file's own bytes for None.

    Where `pixels_vary` is False (JPEG; palette, interlaced or under 8-bit PNG) only metadata changes.
    """
    data, png = _read(str(path))
    if variant is not None:
        mark = hashlib.blake2b(str(variant).encode(), digest_size=MARK_BYTES).digest()
        data = png.variant(mark) if png else _with_comment(data, mark)
    sort = "png" if data.startswith(PNG_MAGIC) else "jpeg"
    return f"data:image/{sort};base64,{base64.b64encode(data).decode()}"
