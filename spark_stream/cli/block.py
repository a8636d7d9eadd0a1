"""`jstream block dump`: what a block file holds, for people."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.failures import EXIT_FAILED, VerbGroup
from spark_stream.cli.options import GroupStoreOption, JsonOption, RawOption, remember_store
from spark_stream.cli.printer import PRINTED_COLUMNS, Style, print_batch, show_time
from spark_stream.cli.quantities import show_size
from spark_stream.cli.render import print_facts, print_json, print_table, say, write

if TYPE_CHECKING:
    from spark_stream.cli.block_survey import BlockSurvey, FrameFinding
    from storage_core.files import File

app = typer.Typer(cls=VerbGroup, help="Look into block files.")


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

    file = OS_FILES.open(path.resolve())
    try:
        damage = print_messages(file, Style.chosen(json, raw)) if messages else print_survey(file, json)
    finally:
        file.close()
    for sentence in damage:
        say(f"damaged: {sentence}")
    if damage:
        raise typer.Exit(EXIT_FAILED)


def print_messages(file: "File", style: Style) -> list[str]:
    """Print all messages that can be read; returns a sentence for each damaged frame."""
    from storage_core.block import BlockReader, FrameRequest

    damage: list[str] = []
    request = FrameRequest(columns=PRINTED_COLUMNS, first_sequence=0, on_damage=lambda found: damage.append(str(found)))
    for batch in BlockReader.open(file).read(request):
        print_batch(batch, style)
    return damage


def print_survey(file: "File", json: bool) -> list[str]:
    """Print what the file holds; returns a sentence for each thing that is damaged."""
    from spark_stream.cli.block_survey import survey

    found = survey(file)
    if json:
        print_json(survey_json(found))
    else:
        _print_for_people(found)
    return found.damage


def survey_json(found: "BlockSurvey") -> dict[str, Any]:
    """Return the survey as plain values; what could not be made out is null."""
    shown: dict[str, Any] = {"file": found.file, "file_size": found.file_size, "header": None, "totals": None}
    if found.header is not None:
        shown["header"] = {"version": 1, **_ids(found), "codec": found.header.codec}
    footer = found.footer
    if footer is not None:
        shown["totals"] = {
            "messages": footer.row_count,
            "span": footer.span,
            "data_size": footer.data_size,
            "time_min": show_time(footer.time_min_ns),
            "time_max": show_time(footer.time_max_ns),
            "msg_ids": footer.msg_id_count,
            "digest": found.digest.hex(),
        }
    shown["frames"] = [_frame_json(frame) for frame in found.frames]
    shown["runs"] = None if footer is None else [list(run) for run in _runs(found)]
    shown["subjects"] = None if footer is None else footer.subjects.count_by_subject()
    shown["damage"] = found.damage
    return shown


def _ids(found: "BlockSurvey") -> dict[str, str]:
    assert found.header is not None
    identity = found.header.identity
    names = ("store_id", "incarnation", "block_id", "transaction_id")
    return {name: getattr(identity, name).hex() for name in names}


def _runs(found: "BlockSurvey") -> Iterable[tuple[int, int]]:
    assert found.footer is not None
    runs = found.footer.runs
    return zip(runs.starts.tolist(), runs.ends.tolist(), strict=True)


def _frame_json(frame: "FrameFinding") -> dict[str, Any]:
    from spark_stream.cli.block_survey import KINDS
    from storage_core.block.format import KIND_MESSAGES

    header = frame.header
    timed = header.kind == KIND_MESSAGES
    return {
        "frame": header.position,
        "offset_bytes": frame.offset_bytes,
        "kind": KINDS[header.kind],
        "rows": header.row_count,
        "payload_size": header.payload_size,
        "time_min": show_time(header.time_min_ns) if timed else None,
        "time_max": show_time(header.time_max_ns) if timed else None,
        "state": frame.defect or "ok",
    }


def _print_for_people(found: "BlockSurvey") -> None:
    facts: list[tuple[str, Any]] = [("size", show_size(found.file_size))]
    if found.header is None:
        facts.append(("header", "damaged"))
    else:
        facts += [("format", 1), *_ids(found).items(), ("codec", found.header.codec)]
    footer = found.footer
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
            ("digest", found.digest.hex()),
        ]
    print_facts(f"Block {found.file}", facts)
    frames = [_frame_json(frame) for frame in found.frames]
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
