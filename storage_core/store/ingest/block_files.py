"""Block files of ours that lie outside of a store, as an archive has them: their messages put into a stream."""

from collections.abc import Callable

from storage_core.block.damage import FrameDamage
from storage_core.block.reader import BlockReader
from storage_core.block.request import FrameRequest
from storage_core.errors import RequirementError
from storage_core.files import File
from storage_core.schema import FRAME_SCHEMA
from storage_core.store.stream import Stream
from storage_core.store.writing.appends import WriterBatch

WRITER = "import-block"  # who appends a block, with the block's id as the batch: each is stored once


def import_block(
    stream: Stream, file: File, first: int | None = None, on_damage: Callable[[str], None] | None = None
) -> range:
    """Put the messages of a block file into a stream; return the sequences of the block, also if it was stored before.

    `first`: the sequence that the block began with, so that its messages keep theirs; else they get the next ones.
    `on_damage` gets each frame that is left out. Raises CorruptionError for a file that is no whole block, and
    without `on_damage` for a damaged frame; RequirementError if they cannot keep their sequences; OSError; what
    `Stream.append` raises. Then nothing was stored.
    """

    def report(damage: FrameDamage) -> None:
        assert on_damage is not None
        on_damage(f"{file.path}: {damage}")

    reader = BlockReader.open(file)
    columns = FRAME_SCHEMA.names if first is None else ["sequence", *FRAME_SCHEMA.names]
    request = FrameRequest(
        tuple(columns), first_sequence=first or 0, on_damage=report if on_damage is not None else None
    )
    block_id = reader.identity.block_id.hex()
    got = stream.restore(reader.read(request), WriterBatch(WRITER, block_id))
    if first is None:
        return got
    kept = range(first, first + reader.footer.span)
    if got and got[-1] not in kept:
        raise RequirementError(
            f"stream {stream.name!r} has block {block_id} from an earlier import, as sequences {got[0]} to {got[-1]}: "
            f"they are not {kept[0]} to {kept[-1]} now; import it into another stream. Nothing was stored"
        )
    return kept if got else range(first, first)
