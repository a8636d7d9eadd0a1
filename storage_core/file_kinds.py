"""How large a file of each kind can be. Whoever reads one goes by this, and takes no more.

A size is a claim of whoever made the file, and a sparse file claims a terabyte for nothing. Files that are read whole
have a bound here, chosen with what their content becomes in memory; of a larger one nothing is read. What may be of any
size is read in pieces: the journal of placements, the slices, subscriptions and clients of STAN, and blocks of ours,
frame by frame.
"""

from dataclasses import dataclass

from storage_core.errors import CorruptionError
from storage_core.files import File

PAGE_SIZE = 4096  # bytes; that of the formats, whatever that of the machine


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of one format, as they are called in errors, and how many bytes one has at most."""

    name: str
    size_max: int

    def check(self, size: int, path: object) -> None:
        """Raise CorruptionError, naming the file, if it cannot be one of this kind for its size."""
        if size > self.size_max:
            raise CorruptionError(
                f"{path} has {size} bytes, a {self.name} has at most {self.size_max}: nothing of it is read"
            )

    def read(self, file: File) -> bytes:
        """Return all that is in an open file. Raises OSError, CorruptionError as `check` does."""
        size = file.size()
        self.check(size, file.path)
        return file.read_at(0, size)


# --- ours

IDENTITY = FileKind("volume's identity", PAGE_SIZE)
MAKING_MARK = FileKind("mark of an unfinished volume", 5 * PAGE_SIZE)  # an identity a volume
BACKUP_MARK = FileKind("mark of an unfinished backup", PAGE_SIZE)
REPORT = FileKind("report of damage", 2 * PAGE_SIZE)
LEASE = FileKind("lease", PAGE_SIZE)
IMPORT_RECORD = FileKind("record of an import", 32 << 20)
VOLUME_INDEX = FileKind("volume's index", 32 << 20)  # of a million blocks
# A log goes on in a new segment from 8 MiB on. Room for a batch of the longest entries, and for what removes.
LOG_SEGMENT = FileKind("log segment", 1 << 28)
# Metadata is in memory as a whole whenever a store is open: who reads the largest of these needs its size anyway.
SNAPSHOT = FileKind("snapshot", (1 << 30) + PAGE_SIZE)  # of nearly ten million blocks
BLOCK = FileKind("block", (1 << 32) - 1)  # a place in it is a u32

# --- of NATS JetStream

NATS_META = FileKind("stream's or consumer's meta.inf", 1 << 20)  # one hash over all of it takes a second
NATS_SUM = FileKind("meta.sum", 64)
NATS_KEY = FileKind("key file", 4096)  # 64 or 72 bytes are expected
NATS_INDEX = FileKind("index.db", 4 << 20)  # the hash takes a second a MiB; 100,000 subjects fit
# A block of 64 MiB holds two million records, and a removed one takes a few bytes.
NATS_OLD_INDEX = FileKind("N.idx", 16 << 20)
NATS_BLOCK = FileKind("block", 128 << 20)  # they have 8 MiB or one record, those of old servers 64 MiB
NATS_CONSUMER_STATE = FileKind("o.dat", 4 << 20)  # 600,000 messages that wait for their acknowledgement

# --- of NATS Streaming

STAN_SERVER = FileKind("server.dat", 64 << 10)
