"""`jstream stream compact`: many small blocks become few."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, CommandFailed
from spark_stream.cli.options import JsonOption, StoreOption, open_store
from spark_stream.cli.verify import ProgressCall, progress_bar
from spark_stream.look.terminal import counted, print_json, say

if TYPE_CHECKING:
    from storage_core import Store


def compact(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Streams.", show_default=False)],
    spark: Annotated[bool, typer.Option("--spark", help="Read and write by the tasks of a Spark job.")] = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Merge small neighbouring blocks into as few as the stream's block_max_msgs and block_max_bytes allow.

    No message and no sequence changes; removed messages are dropped; readers notice nothing. Blocks with msg_ids wait
    until the duplicate_window has passed. Exit code 1 if a block has to be repaired first.
    """
    with open_store(store) as opened, progress_bar("blocks") as progress:
        before = sum(len(opened.stream_state(name).blocks) for name in names)
        done = _by_spark(opened, names, progress) if spark else opened.compact(names, progress)
        after = sum(len(opened.stream_state(name).blocks) for name in names)
    if json:
        print_json(done)
    else:
        merged = f"{counted(done['blocks'], 'block')} merged" if done["runs"] else "nothing to merge"
        say(f"{merged}: there were {before}, and are {after}")
        for reason in done["unreadable"]:
            say(f"not merged before it is repaired: {reason}")
    if done["unreadable"]:
        raise typer.Exit(EXIT_FAILED)


def _by_spark(store: "Store", names: list[str], progress: ProgressCall | None) -> dict[str, Any]:
    from spark_stream import compaction
    from spark_stream.importing import job

    try:
        with job.session() as session:
            return compaction.compact(session, store, names, progress)
    except RuntimeError as error:
        raise CommandFailed(str(error)) from error
