"""The KV cache as a pool of fixed blocks; blocks of finished prompts stay findable until their space is needed."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_SIZE = 16


def blocks_for(tokens: int) -> int:
    """How many blocks hold this many tokens."""
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    """Reference-counted blocks; free ones are reused oldest first and keep their content's hash until then."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self.refs = [0] * size
        self.hash_of: list[int | None] = [None] * size
        self.block_of: dict[int, int] = {}

    @property
    def usage(self) -> float:
        """Share of blocks held by sequences, 0 to 1."""
        return 1 - len(self.free) / self.size

    def match(self, hashes: Iterable[int]) -> list[int]:
        """The longest run of cached blocks that starts this prompt."""
        found = []
        for value in hashes:
            block = self.block_of.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                del self.free[block]
            self.refs[block] += 1

    def take(self, count: int) -> list[int] | None:
        """New blocks, or None when there are not enough."""
        if count > len(self.free):
            return None
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.refs[block] = 1
            self._forget(block)
        return taken

    def publish(self, block: int, value: int) -> None:
        """Make a filled prompt block findable by later prompts."""
        if value not in self.block_of and self.hash_of[block] is None:
            self.block_of[value] = block
            self.hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # the tail of a prompt is the least shared part: reuse it first
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free[block] = None

    def _forget(self, block: int) -> None:
        value = self.hash_of[block]
        if value is not None:
            del self.block_of[value]
            self.hash_of[block] = None
