"""What the messages of a life say: their token and number, so that each is known wherever it is met."""

import hashlib
from dataclasses import dataclass

PADDING_SIZE_MAX = 1500  # bytes: a block of a few messages then spans several pages


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one append. The token is used once in a life, so a message that is there twice shows."""

    token: str
    subject: str
    count: int

    def data(self, number: int) -> bytes:
        name = f"{self.token}:{number}:".encode()
        digest = hashlib.sha256(name).digest()
        size = int.from_bytes(digest[:2], "big") % PADDING_SIZE_MAX
        return name + hashlib.shake_128(digest).digest(size)


def name_of(data: bytes) -> tuple[str, int]:
    """Return token and number of a message; raises ValueError for what no life has written."""
    token, number, _ = data.split(b":", 2)
    return token.decode(), int(number)
