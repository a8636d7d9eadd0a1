"""The block file: header, frames, footer; one codec, one writer, one reader. Source: docs/formats/block.md."""

from storage_core.block.damage import Defect, FrameDamage
from storage_core.block.format import (
    BLOCK_SIZE_MAX,
    CODECS,
    MESSAGE_SIZE_MAX,
    ROW_COUNT_MAX,
    ROW_SIZE_MAX,
    BlockExpectation,
    BlockIdentity,
    BlockSummary,
)
from storage_core.block.hashing import msg_id_hashes
from storage_core.block.reader import BlockReader, MessageIds
from storage_core.block.request import FrameRequest
from storage_core.block.writer import BlockWriter

__all__ = [
    "BLOCK_SIZE_MAX",
    "CODECS",
    "MESSAGE_SIZE_MAX",
    "ROW_COUNT_MAX",
    "ROW_SIZE_MAX",
    "BlockExpectation",
    "BlockIdentity",
    "BlockReader",
    "BlockSummary",
    "BlockWriter",
    "Defect",
    "FrameDamage",
    "FrameRequest",
    "MessageIds",
    "msg_id_hashes",
]
