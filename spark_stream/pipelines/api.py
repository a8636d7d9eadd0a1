"""`run_pipeline(path)`: a pipeline from Python, as `jstream etl run` runs it from a shell."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_stream.pipelines.beginnings import Beginnings
from spark_stream.pipelines.config import CONTINUOUS, Pipeline, load_pipeline
from spark_stream.pipelines.errors import CheckpointLostError, RunFailedError
from spark_stream.pipelines.failures import SPARK_ERRORS, code_of, in_words
from spark_stream.pipelines.run import Prepared, Reporter, Run, Stop, Watcher, prepare
from spark_stream.pipelines.session import pipeline_session
from spark_stream.pipelines.source import check_stores, take_over_stores
from spark_stream.pipelines.state import PipelineState
from spark_stream.pipelines.status import messages_to_go
from spark_stream.pipelines.summary import Summary


def run_pipeline(
    path: str | os.PathLike[str],
    store: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "",
    continuous: bool = False,
    new_checkpoint: bool = False,
    take_over: bool = False,
    watch: Watcher = lambda progress: None,
    stop: Stop | None = None,
) -> Summary:
    """Run the pipeline that a file describes; return what it did.

    The run ends when everything that is in the stream now is read; with `continuous`, when another thread calls
    `stop.ask(reason)`. `store`: volumes, where the file names none. `watch` is called after each finished batch. The
    run takes the active Spark session, else one of its own. `new_checkpoint` and `take_over` are those of `jstream
    etl run`.

    Raises DefinitionError (the file), CheckpointHeldError (another run has the checkpoint), CheckpointLostError
    (another run has taken it over), CheckpointError, RunFailedError (the query), StorageError.
    """
    volumes = [store] if isinstance(store, (str, os.PathLike)) else store
    pipeline = load_pipeline(Path(path), ",".join(os.fspath(volume) for volume in volumes))
    summary = new_summary(pipeline, continuous)
    run(pipeline, summary, stop or Stop(), watch, new_checkpoint, take_over)
    return summary


def new_summary(pipeline: Pipeline, continuous: bool) -> Summary:
    return Summary(pipeline.name, CONTINUOUS if continuous else pipeline.trigger.mode)


def run(
    pipeline: Pipeline,
    summary: Summary,
    stop: Stop,
    watch: Watcher,
    new_checkpoint: bool = False,
    take_over: bool = False,
    started: Callable[[], None] = lambda: None,
    report: Reporter = lambda text: None,
) -> None:
    """Run a pipeline that was loaded; the summary is right however that ends. `started` is called when Spark is there.

    `report` hears, in a few words, of each thing that the run begins with.

    Raises what run_pipeline does.
    """
    state = PipelineState(pipeline.checkpoint)
    with finishing(summary), state.lock("etl run"), _recording(summary, state):
        if take_over:
            take_over_stores(pipeline)
        Beginnings(state, pipeline).check(new_checkpoint)
        lag = messages_to_go(pipeline)
        with prepared(pipeline, report=lambda text: report(f"{text}, {lag:,} to go")) as made:
            started()
            Run(made, state, summary).execute(stop, watch, report)


@contextmanager
def prepared(
    pipeline: Pipeline,
    describe: Callable[[str], None] = lambda line: None,
    report: Reporter = lambda text: None,
) -> Iterator[Prepared]:
    """Yield the pipeline, checked, in a session; `describe` gets what the source has before Spark is started.

    `report` hears of each thing that is done. Raises RunFailedError in place of errors of Spark.
    """
    for line in check_stores(pipeline):
        describe(line)
    try:
        with pipeline_session(pipeline, report) as spark:
            report("checking the transformation")
            yield prepare(pipeline, spark)
    except SPARK_ERRORS as error:
        raise RunFailedError(in_words(error), code_of(error)) from error


@contextmanager
def finishing(summary: Summary) -> Iterator[None]:
    """Let the summary say why the run has failed."""
    try:
        yield
    except KeyboardInterrupt:
        summary.finish(False, stopped="SIGINT")
        raise
    except Exception as error:
        if not summary.error:
            summary.finish(False, in_words(error))
        raise


@contextmanager
def _recording(summary: Summary, state: PipelineState) -> Iterator[None]:
    """Keep the summary beside the checkpoint, however the run ends; the records of a successor are left alone."""
    try:
        with finishing(summary):
            yield
    except CheckpointLostError:
        raise
    except BaseException:
        state.add_run(summary.to_json())
        raise
    state.add_run(summary.to_json())
