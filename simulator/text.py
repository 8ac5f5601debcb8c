"""Text as tokens, roughly: one per Chinese, Japanese or Korean character, one per four other characters."""

import re
import zlib
from collections.abc import Sequence

from simulator.kvcache import BLOCK_SIZE

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(f"[{_CJK}]|[^{_CJK}]{{1,4}}")
_WORD = re.compile(f"[{_CJK}]| ?[^ {_CJK}]+| +")

ENGLISH = (
    " The harbour was quiet before sunrise, and the first boat had not yet left its berth. A woman with a"
    " lantern walked along the wall, counting the nets that hung there to dry. She knew each of them by"
    " the knots its owner made, and she knew which ones would tear in the next storm. When the light came"
    " up behind the hills, the gulls began to call, the bakery opened its shutters, and the smell of bread"
    " reached the water. Nobody hurried, because the tide would wait until seven"
    " and so would the fish."
)
CHINESE = (
    "清晨的港口还很安静，第一条船没有离开码头。一位提着灯的女人沿着石墙走来，数着晾在那里的渔网。"
    "她认得每张网上的绳结，也知道哪一张会在下一场风暴里破掉。山后的天色慢慢亮起来，海鸥开始鸣叫，"
    "面包店打开了窗板，香味一直飘到水边。没有人着急，因为潮水要等到七点，鱼也一样。"
)


def pieces(text: str) -> list[str]:
    """The text cut into pretend tokens."""
    return _PIECE.findall(text)


def words(text: str) -> list[str]:
    """The text cut as a reply is streamed: word by word, Chinese character by character."""
    return _WORD.findall(text)


def is_chinese(text: str) -> bool:
    """Whether a reply should be in Chinese: more than a fifth of the prompt is."""
    return 5 * len(re.findall(f"[{_CJK}]", text)) > len(text)


def token_id(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % 151_643


def block_hashes(tokens: Sequence[str]) -> list[int]:
    """One hash per full block of a prompt, each covering everything before it too."""
    hashes: list[int] = []
    value = 0
    for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
        value = hash((value, *tokens[end - BLOCK_SIZE : end]))
        hashes.append(value)
    return hashes
