"""Block files of ours that lie outside of a store, as an archive has them: their messages appended to a stream."""

from collections.abc import Callable

from storage_core.block.damage import FrameDamage
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.files import File
from storage_core.schema import FRAME_SCHEMA
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch

WRITER = "import-block"  # who appends a block, with the block's id as the batch: each is stored once


def append_block(stream: Stream, file: File, on_damage: Callable[[str], None] | None) -> range:
    """Append the messages of a block file; return the sequences that they have, also if they were stored before.

    `on_damage` hears of each frame that is left out. Raises CorruptionError for a file that is no whole block, and
    without `on_damage` for a damaged frame; OSError; what `Stream.append` raises. Then nothing was stored.
    """

    def report(damage: FrameDamage) -> None:
        assert on_damage is not None
        on_damage(f"{file.path}: {damage}")

    reader = BlockReader.open(file)
    request = FrameRequest(
        tuple(FRAME_SCHEMA.names), first_sequence=0, on_damage=report if on_damage is not None else None
    )
    return stream.append(reader.read(request), WriterBatch(WRITER, reader.identity.block_id.hex()))
