"""Decryption of a JetStream store whose server was configured with a key.

From the key of the configuration (`jetstream { key: ... }`) each file's key is reached in two steps:

1. HMAC-SHA-256 under that key, over the account's name and a context, gives the key of a key file. Contexts are the
   name of the stream (`meta.key` beside `meta.inf`), `STREAM:N` (`N.key` beside block N), `STREAM.CONSUMER`.
2. The key file is a box (nonce, sealed seed of 32 bytes, tag of 16). The seed is the key of the files beside it.

`meta.inf`, `index.db` and `o.dat` are boxes under the seed, `index.db` with its checksum behind. A block is the
stream cipher under seed and nonce of its key file, over the whole file.

The size of the key file tells the cipher: 72 bytes is XChaCha20-Poly1305 (nonce 24), 64 is AES-256, GCM for boxes and
CTR for blocks (nonce 16). XChaCha20 is ChaCha20 under a key that HChaCha20 derives from the first 16 bytes of the
nonce; that step is done here, everything else by the package `cryptography`.

Source: nats-server, server/jetstream.go (`jsKeyGen`, `EnableJetStream`), server/filestore.go (`genEncryptionKey`,
`genBlockEncryptionKey`, `recoverMsgBlock`); draft-irtf-cfrg-xchacha-03 (HChaCha20); RFC 8439 (its rounds).
"""

import hashlib
import hmac
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any

from storage_core.errors import CorruptionError, RequirementError

SEED_SIZE, TAG_SIZE = 32, 16  # bytes
CHACHA_NONCE_SIZE, AES_NONCE_SIZE = 24, 16  # bytes
_KEY_FILE_SIZES = {size + SEED_SIZE + TAG_SIZE: size for size in (CHACHA_NONCE_SIZE, AES_NONCE_SIZE)}
_EIGHT, _FOUR = Struct("<8I"), Struct("<4I")
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Seed:
    """The key of the files beside a key file, and the nonce that a block uses with it."""

    key: bytes
    nonce: bytes

    def __repr__(self) -> str:
        return "Seed(...)"  # never shown: it opens the files

    def open_box(self, box: bytes, name: str) -> bytes:
        """Return the content of a file that begins with its nonce. Raises CorruptionError if its tag does not hold."""
        size = len(self.nonce)
        if len(box) < size + TAG_SIZE:
            raise CorruptionError(f"{name}: {len(box)} bytes are too few for an encrypted file")
        return _open(self.key, box[:size], box[size:], name)

    def decrypt_block(self, content: memoryview) -> bytes:
        """Return the bytes of a block. A stream cipher has no tag: damage stays where it is."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        cipher: Cipher[Any]
        if len(self.nonce) == AES_NONCE_SIZE:
            cipher = Cipher(algorithms.AES(self.key), modes.CTR(self.nonce))
        else:
            counter_and_nonce = bytes(8) + self.nonce[16:]
            cipher = Cipher(algorithms.ChaCha20(hchacha20(self.key, self.nonce[:16]), counter_and_nonce), None)
        return cipher.decryptor().update(content.cast("B"))


def derive_key(server_key: str, account: str, context: str) -> bytes:
    """Return the key of the key file that a server writes for a stream, block or consumer of an account."""
    return hmac.new(server_key.encode(), (account + context).encode(), hashlib.sha256).digest()


def open_key_file(keys: Sequence[bytes], content: bytes, name: str) -> Seed:
    """Return the seed in a key file, under the first of the keys that opens it, as `derive_key` gives them for it.

    Raises CorruptionError if it is no key file or under none of the keys, RequirementError without the package
    `cryptography`.
    """
    nonce_size = _KEY_FILE_SIZES.get(len(content))
    if nonce_size is None:
        raise CorruptionError(f"{name}: {len(content)} bytes, a key file has {' or '.join(map(str, _KEY_FILE_SIZES))}")
    nonce = content[:nonce_size]
    for key in keys[:-1]:
        with suppress(CorruptionError):
            return Seed(_open(key, nonce, content[nonce_size:], name), nonce)
    return Seed(_open(keys[-1], nonce, content[nonce_size:], name), nonce)


def hchacha20(key: bytes, nonce: bytes) -> bytes:
    """Return the key that XChaCha20 uses with the rest of its nonce; `nonce` is 16 bytes."""
    state = [*_FOUR.unpack(b"expand 32-byte k"), *_EIGHT.unpack(key), *_FOUR.unpack(nonce)]
    for _ in range(10):
        for column in range(4):
            _quarter_round(state, column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            _quarter_round(state, column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return _EIGHT.pack(*state[:4], *state[12:])


def _quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for to_a, from_b, turn_d, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[to_a] = (state[to_a] + state[from_b]) & _MASK
        mixed = state[turn_d] ^ state[to_a]
        state[turn_d] = (mixed << bits | mixed >> 32 - bits) & _MASK


def _open(key: bytes, nonce: bytes, sealed: bytes, name: str) -> bytes:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    except ImportError as error:
        raise RequirementError(
            f"{name}: decryption needs the package cryptography: pip install 'pyspark-jstream[encryption]'"
        ) from error
    try:
        if len(nonce) == AES_NONCE_SIZE:
            return AESGCM(key).decrypt(nonce, sealed, None)
        return ChaCha20Poly1305(hchacha20(key, nonce[:16])).decrypt(bytes(4) + nonce[16:], sealed, None)
    except InvalidTag as error:
        raise CorruptionError(
            f"{name}: no encryption key opens it: it is under another key (a server that is given a new key writes "
            "the blocks of a stream again, and leaves its consumers under the former key: give both), or the file is "
            "damaged; the names of account, stream and consumer are part of the key as well"
        ) from error
