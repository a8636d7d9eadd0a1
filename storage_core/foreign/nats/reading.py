"""Reading one block of a foreign stream, where the messages are wanted: on an executor.

Every record is checked by its own checksum. What fails is never served: it is reported as damage, with the sequences
that are lost by it as far as they are known, or raised.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core import buffers
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError, DataLossError, UnsupportedVersionError
from storage_core.files import OS_FILES, Files
from storage_core.foreign.arrays import BATCH_ROW_COUNT, BATCH_SIZE, runs_by_size
from storage_core.foreign.budget import PLACE_COUNT_MAX, together
from storage_core.foreign.digests import Digests
from storage_core.foreign.nats.batches import half_batches
from storage_core.foreign.nats.block import BlockContent, read_block
from storage_core.foreign.nats.columns import build_batch, subjects_of
from storage_core.foreign.nats.highwayhash import LONG_SIZE, Key
from storage_core.foreign.nats.index import SEQUENCE_END
from storage_core.foreign.nats.long_chains import side_by_side_size
from storage_core.foreign.nats.record import Records, block_key, claimed, content_digests
from storage_core.foreign.nats.scan import BlockScan, RecordDamage, scan_blocks, scan_sound_block
from storage_core.foreign.slices import ForeignDamage, ForeignSlice
from storage_core.os_errors import raise_if_of_process
from storage_core.schema import read_schema
from storage_core.sequences import SequenceSet
from storage_core.subject_columns import match_mask
from storage_core.subjects import LITERAL_PATTERN


@dataclass(frozen=True, slots=True)
class OpenedSlice:
    """A part whose block was read and scanned, or what kept it from being read."""

    part: ForeignSlice
    content: BlockContent | None = None
    scan: BlockScan | None = None
    problem: ForeignDamage | None = None

    def read(
        self, columns: Sequence[str], on_damage: Callable[[ForeignDamage], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages in schema.read_schema(columns), ascending by sequence.

        The whole block was checked before the first batch. Damage goes to `on_damage`; without it, damage that cost
        messages, or may have, raises DataLossError.
        """
        read_schema(tuple(columns))
        for content, shown, subjects in self._shown(on_damage):
            if on_damage is not None:
                subjects = _tell_unproven(self.part, content, shown, subjects, on_damage)
                _tell_half_batches(self.part, content, shown, on_damage)
            kept, subjects = _filtered(self.part, content, shown, subjects)
            for first, end in runs_by_size(np.maximum(kept.sizes, BATCH_SIZE // BATCH_ROW_COUNT), BATCH_SIZE):
                own = None if subjects is None else subjects.slice(first, end - first)
                yield build_batch(self.part.stream, content, kept.take(slice(first, end)), columns, own)

    def digests(self, on_damage: Callable[[ForeignDamage], None]) -> Iterator[Digests]:
        """Yield digests of the messages, whatever the filters. Damage goes to `on_damage`."""
        for content, shown, _ in self._shown(on_damage):
            _tell_half_batches(self.part, content, shown, on_damage)
            yield Digests(shown.sequences, shown.times_ns, content_digests(content, shown))

    def _shown(
        self, on_damage: Callable[[ForeignDamage], None] | None
    ) -> Iterator[tuple[pa.Buffer, Records, pa.StringArray | None]]:
        """Yield the content of the block, the true messages of the part in it, and their subjects if those were
        looked at: once, or not if the block cannot be read."""
        part, removed = self.part, SequenceSet.decode(self.part.removed)
        if self.content is None or self.scan is None:
            assert self.problem is not None, part
            _tell([self.problem], on_damage)
            return
        content, scan = self.content, self.scan
        shown = scan.records.take(scan.messages)
        sequences = shown.sequences
        shown = shown.take((sequences >= part.first) & (sequences < part.end) & ~removed.mask(sequences))
        shown, strange, subjects = _known_subjects(part, content.data, shown)
        _tell(_damage(part, content, scan, shown, strange, removed), on_damage)
        yield content.data, shown, subjects


def read_slice(
    part: ForeignSlice,
    columns: Sequence[str],
    on_damage: Callable[[ForeignDamage], None] | None = None,
    files: Files = OS_FILES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one part, as OpenedSlice.read() does."""
    for opened in open_slices([part], files):
        yield from opened.read(columns, on_damage)


def digest_slice(
    part: ForeignSlice, on_damage: Callable[[ForeignDamage], None], files: Files = OS_FILES
) -> Iterator[Digests]:
    """Yield the digests of one part."""
    for opened in open_slices([part], files):
        yield from opened.digests(on_damage)


def open_slices(parts: Sequence[ForeignSlice], files: Files = OS_FILES) -> Iterator[OpenedSlice]:
    """Yield the parts with their blocks, in order. Blocks of few long messages are read and scanned together."""
    for group in _groups(parts):
        contents = [_content(part, files) for part in group]
        yield from _scanned(group, contents)


def _groups(parts: Sequence[ForeignSlice]) -> Iterator[Sequence[ForeignSlice]]:
    """Yield what is scanned together: where blocks hold few messages, up to side_by_side_size() bytes of them."""
    size_max = side_by_side_size()
    few = [part.file_size > LONG_SIZE * max(1, part.row_count) for part in parts]
    sizes = np.array([part.file_size if long else size_max for part, long in zip(parts, few, strict=True)], np.int64)
    for first, end in runs_by_size(sizes, size_max):
        yield parts[first:end]


def _scanned(parts: Sequence[ForeignSlice], contents: Sequence[BlockContent | ForeignDamage]) -> Iterator[OpenedSlice]:
    unproven: list[tuple[pa.Buffer, Key]] = []
    scans: list[BlockScan | None] = []
    for part, content in zip(parts, contents, strict=True):
        scan = None
        if isinstance(content, BlockContent) and _is_sound(part, content):
            scan = scan_sound_block(content.data)
        elif isinstance(content, BlockContent):
            unproven.append((content.data, block_key(part.stream, part.block_index)))
        scans.append(scan)
    proven = iter(scan_blocks(unproven))
    for part, content, scan in zip(parts, contents, scans, strict=True):
        if isinstance(content, ForeignDamage):
            yield OpenedSlice(part, problem=content)
        else:
            yield OpenedSlice(part, content, scan or next(proven))


def _is_sound(part: ForeignSlice, content: BlockContent) -> bool:
    """Return whether these are the bytes in which every record was found to be true when the part was planned."""
    return part.sound_crc32c is not None and not content.damage and crc32c(content.data) == part.sound_crc32c


def _content(part: ForeignSlice, files: Files) -> BlockContent | ForeignDamage:
    """Return what the block of a part holds, or why it cannot be read."""
    if part.missing:
        return replace(_whole_block(part, part.missing), gone=not part.file_size, open=part.open)
    try:
        content = read_block(part.path, files, part.key, block_key(part.stream, part.block_index))
    except FileNotFoundError:
        return replace(_whole_block(part, "the file is gone"), gone=True)
    except OSError as error:
        raise_if_of_process(error)
        return _whole_block(part, f"the file cannot be read: {error.strerror or error}")
    except (CorruptionError, UnsupportedVersionError) as error:
        return _whole_block(part, str(error))
    if not content.data.size and not part.known:
        return _whole_block(part, "the file is empty")
    return content


def _known_subjects(
    part: ForeignSlice, block: pa.Buffer, shown: Records
) -> tuple[Records, Records, pa.StringArray | None]:
    """Split off messages with a subject that the stream has not, if all its subjects are known.

    Returns the others, those, and the subjects of the others if they were looked at. The size of a subject is not
    covered by the checksum: damaged, it moves bytes between subject and payload.
    """
    if part.subjects is None or not len(shown):
        return shown, shown.take(slice(0, 0)), None
    subjects = subjects_of(block, shown)
    coded = subjects.dictionary_encode()
    known = buffers.mask(pc.is_in(coded.dictionary, buffers.of_texts(part.subjects)))
    good = known[buffers.numbers(coded.indices)]
    if good.all():
        return shown, shown.take(slice(0, 0)), subjects
    return shown.take(good), shown.take(~good), subjects.filter(buffers.of_bits(good))


def _tell_unproven(
    part: ForeignSlice,
    block: pa.Buffer,
    shown: Records,
    subjects: pa.StringArray | None,
    on_damage: Callable[[ForeignDamage], None],
) -> pa.StringArray | None:
    """Say once for the block which messages have a subject that is none, or not the stream's; return the subjects.

    Without an index nothing else tells where a subject ends that no headers follow. The messages are served: a stream
    keeps what it took before its configuration changed.
    """
    if part.subjects is not None or not len(shown):
        return subjects
    subjects = subjects_of(block, shown) if subjects is None else subjects
    coded = subjects.dictionary_encode()
    taken = pc.match_substring_regex(coded.dictionary, LITERAL_PATTERN)
    if part.configured:
        taken = pc.and_(taken, match_mask(part.configured, coded.dictionary))
    known = buffers.mask(taken)[buffers.numbers(coded.indices)]
    unproven = shown.take(~known & (shown.header_sizes < 0))
    if len(unproven):
        sequences = unproven.sequences
        count = f"{len(unproven)} messages, the first" if len(unproven) > 1 else "the message"
        reason = (
            f"{count} with sequence {sequences[0]}, with a subject that the stream does not take: it took it earlier, "
            "or the size of the subject, which no checksum covers, is wrong and cuts subject and data at another place"
        )
        place = RecordDamage(int(unproven.starts[0]), int(unproven.ends[-1]), reason, 0, None)
        on_damage(_foreign_damage(part, place, "", SequenceSet.empty()))
    return subjects


def _tell_half_batches(
    part: ForeignSlice, block: pa.Buffer, shown: Records, on_damage: Callable[[ForeignDamage], None]
) -> None:
    """Say which messages are half of an atomic batch. They are served: they are whole, and none is known to be lost."""
    if not part.atomic_end or not len(shown):
        return
    halves = half_batches(block, shown, part.atomic_end)
    for row, count, batch in halves[:PLACE_COUNT_MAX]:
        sequence = int(shown.sequences[row - 1])
        reason = (
            f"half of the atomic batch {batch!r}: {count} of its messages, the last with sequence {sequence}, and none "
            "that commits it; all of a batch are there or none, so these were to be none"
        )
        place = RecordDamage(int(shown.starts[row - count]), int(shown.ends[row - 1]), reason, 0, None)
        on_damage(_foreign_damage(part, place, "", SequenceSet.empty()))
    if len(halves) > PLACE_COUNT_MAX:
        more = len(halves) - PLACE_COUNT_MAX
        place = RecordDamage(0, part.file_size, together(more, "half of an atomic batch"), 0, None, more)
        on_damage(_foreign_damage(part, place, "", SequenceSet.empty()))


def _filtered(
    part: ForeignSlice, block: pa.Buffer, shown: Records, subjects: pa.StringArray | None
) -> tuple[Records, pa.StringArray | None]:
    """Return the messages that the part asks for, and their subjects if they were looked at."""
    keep = np.ones(len(shown), bool)
    if part.time_first_ns is not None:
        keep &= shown.times_ns >= part.time_first_ns
    if part.time_end_ns is not None:
        keep &= shown.times_ns < part.time_end_ns
    if part.subject_filters and len(shown):
        subjects = subjects_of(block, shown) if subjects is None else subjects
        keep &= buffers.mask(match_mask(part.subject_filters, subjects))
    if keep.all():
        return shown, subjects
    return shown.take(keep), None if subjects is None else subjects.filter(buffers.of_bits(keep))


# --- damage ---------------------------------------------------------------------------------------------------------


def _damage(
    part: ForeignSlice, content: BlockContent, scan: BlockScan, shown: Records, strange: Records, removed: SequenceSet
) -> list[ForeignDamage]:
    """Return all damage of the block, each place with the sequences of the part that it cost."""
    asked = SequenceSet.from_ranges([(part.first, part.end)]).difference(removed)
    if not (scan.damage or content.damage or len(strange)) and (not part.known or len(shown) == len(asked)):
        return []  # `shown` is a part of `asked`, so nothing can be missing
    missing = asked.difference(SequenceSet.from_sequences(shown.sequences))
    file = "compressed file" if content.compressed else "file"
    note = "".join(f"; in the {file} at offset_bytes {at}: {reason}" for at, reason in content.damage[:3])
    unproven = [] if part.known else _may_have_removed(part, content.data, scan, removed)
    places = []
    done: list[tuple[int, int]] = []  # what is put down to damage; both ends rise with the places in the block
    for damage in sorted([*scan.damage, *_strange_damage(strange)], key=lambda damage: damage.offset_bytes):
        first, end = damage.after + 1, damage.before if damage.before is not None else SEQUENCE_END
        lost = missing.clip(max(first, done[-1][1]) if done else first, end)
        if first < end:
            done.append((first, end if not done else max(end, done[-1][1])))
        unclear = damage in unproven or (not part.known and damage.places > 1)
        places.append(_foreign_damage(part, damage, note, lost, unclear))
    if content.damage and not places:
        at, reason = content.damage[0]
        place = RecordDamage(at, at, reason, 0, None)
        places.append(_foreign_damage(part, place, "", SequenceSet.empty(), unclear=not part.known))
    missing = missing.difference(SequenceSet.from_ranges(done)) if part.known else missing
    if part.known and missing:
        hole = RecordDamage(part.file_size, part.file_size, "the index lists them, the block has no record", 0, None)
        places.append(_foreign_damage(part, hole, note, missing))
    return places


def _may_have_removed(
    part: ForeignSlice, block: pa.Buffer, scan: BlockScan, removed: SequenceSet
) -> list[RecordDamage]:
    """Return the damage in which a tombstone may have been: no message of the block is missing there, and the bytes do
    not claim to be messages that were removed."""
    shown = SequenceSet.from_sequences(scan.records.sequences[scan.messages])
    missing = SequenceSet.from_ranges([part.bounds]).difference(removed).difference(shown)
    some = []
    for damage in scan.damage:
        first, end = damage.after + 1, damage.before if damage.before is not None else SEQUENCE_END
        if missing.count_in(first, end):
            continue
        records = claimed(block, damage.offset_bytes, damage.end_bytes)
        if records is None or records.tombstones.any() or not removed.clip(first, end).mask(records.sequences).all():
            some.append(damage)
    return some


def _strange_damage(strange: Records) -> list[RecordDamage]:
    some = strange.take(slice(0, PLACE_COUNT_MAX))
    places = zip(some.starts.tolist(), some.ends.tolist(), some.sequences.tolist(), strict=True)
    reason = "the subject is none of the stream's (its size is not covered by the checksum)"
    damage = [RecordDamage(start, end, reason, sequence - 1, sequence + 1) for start, end, sequence in places]
    rest = strange.take(slice(PLACE_COUNT_MAX, len(strange)))
    if len(rest):
        after, before = int(rest.sequences.min()) - 1, int(rest.sequences.max()) + 1
        summary = together(len(rest), reason)
        damage.append(RecordDamage(int(rest.starts[0]), int(rest.ends[-1]), summary, after, before, len(rest)))
    return damage


def _whole_block(part: ForeignSlice, reason: str) -> ForeignDamage:
    asked = SequenceSet.from_ranges([(part.first, part.end)]).difference(SequenceSet.decode(part.removed))
    return _foreign_damage(part, RecordDamage(0, part.file_size, reason, 0, None), "", asked, not part.known)


def _foreign_damage(
    part: ForeignSlice, damage: RecordDamage, note: str, lost: SequenceSet, unclear: bool = False
) -> ForeignDamage:
    end = int(lost.ends[-1]) if lost else None
    return ForeignDamage(
        layout=part.layout,
        account=part.account,
        stream=part.stream,
        file=part.path,
        offset_bytes=damage.offset_bytes,
        end_bytes=damage.end_bytes,
        first=int(lost.starts[0]) if lost else None,
        end=None if end == SEQUENCE_END else end,
        lost_count=len(lost) if part.known else None,
        unclear=unclear,
        reason=damage.reason + note,
        places=damage.places,
    )


def _tell(places: Sequence[ForeignDamage], on_damage: Callable[[ForeignDamage], None] | None) -> None:
    if on_damage is not None:
        for damage in places:
            on_damage(damage)
        return
    lost = [damage for damage in places if damage.first is not None or damage.unclear]
    if lost:
        more = f" ({len(lost) - 1} more damaged places in this file)" if len(lost) > 1 else ""
        raise DataLossError(f"{lost[0].describe()}{more}")
