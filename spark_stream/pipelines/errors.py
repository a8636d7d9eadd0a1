"""What a pipeline refuses, or fails with. Each error has a code and fields, as the errors of the store have."""

from storage_core.errors import StorageError


class PipelineError(StorageError):
    """A pipeline is refused, or has failed: all errors below."""

    code = "JSTREAM_PIPELINE"


class DefinitionError(PipelineError, ValueError):
    """A definition file is wrong; the text says what is valid."""

    code = "JSTREAM_DEFINITION"
    file: str | None = None
    key: str | None = None  # such as sink.path; None where it is the whole file

    def __init__(self, file: object, key: str, text: str) -> None:
        super().__init__(str(file), key, text)
        self.file, self.key, self._text = str(file), key or None, text

    def sentence(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self._text) if part)


class CheckpointError(PipelineError):
    """The checkpoint, or a file beside it, is unreadable or of another pipeline."""

    code = "JSTREAM_CHECKPOINT"
    checkpoint: str | None = None
    file: str | None = None  # that cannot be read


class CheckpointHeldError(PipelineError):
    """Another run has the checkpoint."""

    code = "JSTREAM_CHECKPOINT_HELD"
    checkpoint: str | None = None
    owner: str | None = None

    def __init__(self, checkpoint: object, owner: str) -> None:
        super().__init__(str(checkpoint), owner)
        self.checkpoint, self.owner = str(checkpoint), owner

    def sentence(self) -> str:
        return f"checkpoint {self.checkpoint} is held by {self.owner}"


class CheckpointLostError(CheckpointHeldError):
    """Another run has taken the checkpoint over: this one was stopped for longer than its lease lasts."""

    code = "JSTREAM_CHECKPOINT_LOST"

    def sentence(self) -> str:
        return f"checkpoint {self.checkpoint} was taken over by {self.owner}; this run has to end"


class BackfillRefusedError(PipelineError):
    """The range cannot be backfilled; nothing was stored."""

    code = "JSTREAM_BACKFILL_REFUSED"
    stream: str | None = None
    first: int | None = None  # sequences [first, end)
    end: int | None = None


class ReplayRefusedError(PipelineError):
    """The dead letters cannot be replayed; nothing was stored or removed."""

    code = "JSTREAM_REPLAY_REFUSED"
    stream: str | None = None  # of dead letters
    sequence: int | None = None  # of the letter that it is about


class RunFailedError(PipelineError):
    """A run failed; the text says why."""

    code = "JSTREAM_RUN_FAILED"
    cause: str | None = None  # the code of the store's error that ended it

    def __init__(self, text: str, cause: str | None = None) -> None:
        super().__init__(text, cause)
        self._text, self.cause = text, cause

    def sentence(self) -> str:
        return self._text
