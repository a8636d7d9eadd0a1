"""Damage reports: word of a bad copy, left by whoever met it while reading, for the maintenance of the next session.

    VOLUME/reports/<16 hex>.report      docs/formats/report.md

Left on a volume other than the damaged one, best effort: an executor may not be able to write anywhere. A hint and
nothing more: maintenance looks at the copy itself. One report for a copy of a block is enough, so its file is named
after that copy, and readers that meet it again find their report there already.
"""

import hashlib
import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import astuple, dataclass, field
from pathlib import Path
from struct import Struct

from storage_core.bounded import pack, unpack
from storage_core.checksum import crc32c
from storage_core.errors import CorruptionError
from storage_core.file_kinds import REPORT
from storage_core.files import Files
from storage_core.os_errors import raise_if_of_process
from storage_core.paths import place
from storage_core.store.volume.identity import FILE_NAME as IDENTITY_NAME

logger = logging.getLogger(__name__)
DIRECTORY, SUFFIX = "reports", ".report"
MAGIC = b"JSTRMRPT"
FORMAT_VERSION = 1
HEADER = Struct("<8sIII")  # magic, version, CRC32C of the payload, payload size
PAYLOAD_SIZE_MAX = 4096  # bytes
REASON_SIZE_MAX = 1024  # bytes of UTF-8
REPORT_COUNT_MAX = 256  # files on a volume; what comes after them is found by scrub
FILE_IS_MISSING = "the file is missing"  # reason of a report about a copy that was not there
_NAME_SIZE = 16  # hex digits


@dataclass(frozen=True, slots=True)
class Report:
    """One copy of a block that was found damaged or missing."""

    incarnation: bytes  # under which the block was written: names its directory
    block_id: bytes
    volume_id: bytes  # whose copy it is
    first: int  # sequences [first, end) could not be read from it; there may be more
    end: int
    offset_bytes: int
    reason: str
    time_ns: int  # when it was found

    @property
    def name(self) -> str:
        """The name of the file: of all reports about one copy the same."""
        subject = self.incarnation + self.block_id + self.volume_id
        return hashlib.blake2b(subject, digest_size=_NAME_SIZE // 2).hexdigest() + SUFFIX

    def encode(self) -> bytes:
        reason = self.reason.encode(errors="replace")[:REASON_SIZE_MAX].decode(errors="ignore")
        payload = pack([*astuple(self)[:6], reason, self.time_ns])
        assert len(payload) <= PAYLOAD_SIZE_MAX, len(payload)
        return HEADER.pack(MAGIC, FORMAT_VERSION, crc32c(payload), len(payload)) + payload


def decode_report(encoded: bytes, file: str) -> Report:
    """Return the report; raises CorruptionError naming the file if the bytes are none of this version."""
    if len(encoded) < HEADER.size:
        raise CorruptionError(f"{file}: {len(encoded)} bytes are no report; it has {HEADER.size} or more")
    magic, version, crc, size = HEADER.unpack_from(encoded)
    payload = encoded[HEADER.size :]
    if (magic, version) != (MAGIC, FORMAT_VERSION):
        raise CorruptionError(f"{file}: begins with {magic!r}, version {version}; a report with {MAGIC!r}, version 1")
    if size != len(payload) or size > PAYLOAD_SIZE_MAX or crc32c(payload) != crc:
        raise CorruptionError(f"{file}: {len(payload)} bytes of payload, {size} expected, or a bad checksum")
    fields = unpack(payload, PAYLOAD_SIZE_MAX, file)
    kinds = (bytes, bytes, bytes, int, int, int, str, int)
    if (
        not isinstance(fields, list)
        or tuple(map(type, fields)) != kinds
        or [len(identifier) for identifier in fields[:3]] != [16] * 3
    ):
        raise CorruptionError(f"{file}: the payload is no report")
    return Report(*fields)


@dataclass(frozen=True, slots=True)
class ReportFile:
    """Where a report was left."""

    path: Path
    files: Files = field(repr=False, compare=False)

    def remove(self) -> None:
        """Take a report away that was dealt with. Raises OSError; one that is gone already is fine."""
        try:
            self.files.unlink(self.path)
        except FileNotFoundError:
            return


class Reports:
    """The reports on one volume. Every call may raise OSError."""

    def __init__(self, files: Files, volume: Path) -> None:
        self._files, self.volume, self._directory = files, volume, volume / DIRECTORY

    def put(self, report: Report) -> Path | None:
        """Write the report unless a whole one is there; None if the volume has as many as it should keep."""
        self._files.file_size(self.volume / IDENTITY_NAME)  # a mount point with nothing mounted takes none
        path = self._directory / report.name
        try:
            names = self._files.list_directory(self._directory)
        except FileNotFoundError:
            self._files.make_directory(self._directory)
            names = []
        if path.name not in names and len(names) >= REPORT_COUNT_MAX:
            return None
        try:
            file = self._files.create(path)
        except FileExistsError:
            if self._read(path) is not None:
                return path
            file = self._files.open(path, writable=True)  # one that was cut off when its writer ended
        with closing(file):
            encoded = report.encode()
            file.write_at(0, encoded)
            file.truncate(len(encoded))
        return path

    def read(self) -> list[tuple[ReportFile, Report]]:
        """Return the whole reports, by name."""
        return [(ReportFile(path, self._files), report) for path, report in self._listed() if report is not None]

    def unreadable(self) -> list[ReportFile]:
        """Return the files that should be reports and are none: cut off, damaged, of another version.

        They may be removed.
        """
        return [ReportFile(path, self._files) for path, report in self._listed() if report is None]

    def _listed(self) -> list[tuple[Path, Report | None]]:
        try:
            names = self._files.list_directory(self._directory)
        except FileNotFoundError:
            return []
        ours = [name for name in sorted(names) if name.endswith(SUFFIX) and len(name) == _NAME_SIZE + len(SUFFIX)]
        return [(self._directory / name, self._read(self._directory / name)) for name in ours[:REPORT_COUNT_MAX]]

    def _read(self, path: Path) -> Report | None:
        try:
            with closing(self._files.open(path)) as file:
                return decode_report(REPORT.read(file), str(path))
        except (OSError, CorruptionError) as error:
            raise_if_of_process(error)
            logger.info("%s is left aside: %s", path, error)
            return None


def reports_at(files: Files, uri: str) -> Reports:
    """Return the reports on the volume at a URI; of local disks that is an absolute path."""
    return Reports(files, place(uri))


def leave(others: Iterable[Reports], report: Report) -> Path | None:
    """Leave the report on the first of these volumes that takes it; return where, None if none does. Never raises."""
    for other_reports in others:
        try:
            path = other_reports.put(report)
        except OSError as error:
            logger.info("%s: a damage report could not be left: %s", other_reports.volume, error)
            continue
        if path is not None:
            return path
    return None
