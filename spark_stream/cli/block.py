"""`jstream block dump`: what a block file holds, for people."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, VerbGroup
from spark_stream.cli.options import GroupStoreOption, JsonOption, RawOption, remember_store
from spark_stream.look.messages import PRINTED_COLUMNS, Style, print_batch, show_time
from spark_stream.look.terminal import print_facts, print_json, print_table, say, show_size, write

if TYPE_CHECKING:
    from spark_stream.block_survey import BlockSurvey
    from storage_core.files import File

app = typer.Typer(cls=VerbGroup, help="Inspect block files.")


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("dump")
def dump(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A block: streams/<incarnation>/<block id>.blk")],
    messages: Annotated[
        bool, typer.Option("--messages", help="Print its messages instead, sequences relative to the block.")
    ] = False,
    raw: RawOption = False,
    json: JsonOption = False,
) -> None:
    """Show what a block file holds and check all of it; a damaged one as far as it can be made out. No store needed.

    Exit code 1 if anything is damaged.
    """
    from storage_core.files import OS_FILES

    with closing(OS_FILES.open(path.resolve())) as file:
        damage = print_messages(file, Style.chosen(json, raw)) if messages else print_survey(file, json)
    for sentence in damage:
        say(f"damaged: {sentence}")
    if damage:
        raise typer.Exit(EXIT_FAILED)


def print_messages(file: "File", style: Style) -> list[str]:
    """Print all messages that can be read; returns a sentence for each damaged frame."""
    from storage_core.block.reader import BlockReader
    from storage_core.block.request import FrameRequest

    damage: list[str] = []
    request = FrameRequest(columns=PRINTED_COLUMNS, first_sequence=0, on_damage=lambda frame: damage.append(str(frame)))
    for batch in BlockReader.open(file).read(request):
        print_batch(batch, style)
    return damage


def print_survey(file: "File", json: bool) -> list[str]:
    """Print what the file holds; returns a sentence for each thing that is damaged."""
    from spark_stream.block_survey import survey

    block = survey(file)
    if json:
        print_json(block.to_json())
    else:
        _print_for_people(block)
    return block.damage


def _print_for_people(block: "BlockSurvey") -> None:
    facts: list[tuple[str, Any]] = [("on disk", show_size(block.file_size))]
    if block.header is None:
        facts.append(("header", "damaged"))
    else:
        facts += [("format", 1), *block.ids().items(), ("codec", block.header.codec)]
    footer = block.footer
    if footer is None:
        facts.append(("footer", "damaged; frames are those that were found by searching"))
    else:
        holes = len(footer.runs.starts) - 1
        facts += [
            ("messages", footer.row_count),
            ("sequences", f"{footer.span} used, from the block's first one on, {holes} holes"),
            ("message bytes", show_size(footer.data_size)),
            ("times", f"{show_time(footer.time_min_ns)} to {show_time(footer.time_max_ns)}"),
            ("message ids", footer.msg_id_count),
            ("digest", block.digest.hex()),
        ]
    print_facts(f"Block {block.file}", facts)
    frames = [frame.to_json() for frame in block.frames]
    columns = ("frame", "offset_bytes", "kind", "rows", "payload_size", "time_min", "time_max", "state")
    print_table(columns, [[frame[column] for column in columns] for frame in frames], "Frames")
    if footer is not None:
        write("\n")
        counts = footer.subjects.count_by_subject()
        if counts is None:
            size = show_size(len(footer.subjects.bloom))
            write(f"subjects: too many to be listed, a bloom filter of {size} stands for them\n")
        else:
            print_table(("subject", "messages"), list(counts.items()), "Subjects")
