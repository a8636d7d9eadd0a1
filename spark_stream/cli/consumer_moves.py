"""`jstream consumer next|reset`: what moves a consumer: reading on with it, or putting it elsewhere."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.consumer import ConsumerArgument, app
from spark_stream.cli.consumer_options import parse_point_ns
from spark_stream.cli.failures import NUMBER_MAX, CommandFailed, WrongUsage
from spark_stream.cli.options import JsonOption, RawOption, StoreOption, StreamArgument, TakeOverOption, open_store
from spark_stream.cli.quantities import parse_duration_option
from spark_stream.look.messages import PRINTED_COLUMNS, Style, print_batch
from spark_stream.look.terminal import counted, print_facts, print_json, say
from spark_stream.plans import place_in, reset_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.store.consumers.consumer import Consumer
    from storage_core.store.stream import Stream

FETCH_COUNT_MAX = 1000  # messages that are printed before they are acknowledged; an interruption repeats at most these
RESET_WORDS = ("earliest", "latest")


@app.command("next")
def next_messages(
    stream: StreamArgument,
    name: ConsumerArgument,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many messages.")] = 1,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge them; else they come again after the ack wait.")
    ] = True,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for them.")] = "5s",
    raw: RawOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Print the next messages of a consumer, and acknowledge what was printed; --json prints one per line."""
    wait_ns, style = parse_duration_option(wait, "--wait"), Style.chosen(json, raw)
    with open_store(store, take_over=take_over) as opened:
        opened_stream = opened.stream(stream)
        consumer = opened_stream.consumer(name)
        before = len(consumer.info()["events"])
        got = again = 0
        for table in _fetches(consumer, count, wait_ns / 1e9):
            print_batch(_printed(opened_stream, table), style)
            if ack and consumer.config.ack_policy != "none":
                consumer.ack(table.column("sequence"))
            got += table.num_rows
            again += sum(delivery_count > 1 for delivery_count in table.column("delivery_count").to_pylist())
        info = consumer.info()
    for event in info["events"][before:]:
        say(f"{event['kind']} {event['before'] or ''}: {event['reason']}")
    if again:
        say(f"{counted(again, 'message')} of them handed out before")
    if info["num_ack_pending"] and not ack:
        say(f"{counted(info['num_ack_pending'], 'message')} to be acknowledged")
    if not got:
        raise CommandFailed((f"no message within {wait}" if wait_ns else "no message now") + _why_none(info))


def _why_none(info: dict[str, Any]) -> str:
    """Return what keeps a consumer from handing out messages that are there; nothing if none are."""
    if info["paused"]:
        return f": consumer {info['name']} is paused"
    limit = info["config"]["max_ack_pending"]
    if 0 < limit <= info["num_ack_pending"] and info["num_pending"]:
        return f": {counted(limit, 'message')} to be acknowledged, no more may wait (max ack pending)"
    return ""


def _fetches(consumer: "Consumer", count: int, wait_s: float) -> "Iterator[pa.Table]":
    """Yield what is fetched until there are `count` messages, or none came for as long as is left of `wait_s`."""
    until = time.monotonic() + wait_s
    while count > 0:
        table = consumer.fetch(min(count, FETCH_COUNT_MAX), max(0.0, until - time.monotonic()))
        if not table.num_rows:
            return
        yield table
        count -= table.num_rows


def _printed(stream: "Stream", table: "pa.Table") -> "pa.RecordBatch":
    """Return fetched messages in the columns that are printed, their times with all nine digits, as `get` has them."""
    import pyarrow as pa

    times: dict[int, int] = {}
    sequences = table.column("sequence").to_pylist()
    for first, end in _stretches(sequences):
        for batch in stream.read(first, end, columns=["sequence", "timestamp_ns"], on_data_loss="continue"):
            times.update(
                zip(batch.column("sequence").to_pylist(), batch.column("timestamp_ns").to_pylist(), strict=True)
            )
    rounded = table.column("timestamp").cast(pa.int64()).to_pylist()
    exact = [times.get(sequence, micros * 1000) for sequence, micros in zip(sequences, rounded, strict=True)]
    with_times = table.append_column("timestamp_ns", pa.array(exact, pa.int64())).select(list(PRINTED_COLUMNS))
    return with_times.combine_chunks().to_batches()[0]


def _stretches(sequences: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges that hold all the sequences and not many others; what is asked for again may lie far behind."""
    ordered = sorted(sequences)
    first = end = ordered[0]
    for sequence in ordered:
        if sequence - end > FETCH_COUNT_MAX:
            yield first, end
            first = sequence
        end = sequence + 1
    yield first, end


@app.command("reset")
def reset(
    stream: StreamArgument,
    name: ConsumerArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="earliest|latest|SEQ|TIME",
            help="Where it continues: first message, end, a sequence, a point in time (1h ago, or ISO 8601). "
            "Default: the first message that is there and was not acknowledged.",
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without it, the plan is printed.")] = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Move a consumer to another message: prints a plan, and carries it out with --execute."""
    with open_store(store, take_over=take_over and execute, read_only=not execute) as opened:
        opened_stream = opened.stream(stream)
        consumer = opened_stream.consumer(name)
        target = None if to is None else _place(opened_stream, to)
        plan = reset_plan(opened, opened_stream, consumer, target)
        if execute:
            plan["next_seq"] = consumer.reset(plan["next_seq"] if to is not None else None)
            plan["executed"] = True
    if json:
        print_json(plan)
    else:
        _print_plan(plan)
    if execute:
        say(f"consumer {name} of stream {stream} continues with {plan['next_seq']}")
    else:
        say("nothing was done; --execute does it")


def _place(stream: "Stream", to: str) -> int:
    """Return the sequence that `--to` names."""
    place = place_in(stream, to, lambda: parse_point_ns(to, "--to", RESET_WORDS))
    if place > NUMBER_MAX:
        raise WrongUsage(f"--to {to}: no sequence is above {NUMBER_MAX}")
    return place


def _print_plan(plan: dict[str, Any]) -> None:
    facts = [
        ("delivered up to", plan["delivered"]["stream_seq"]),
        ("acknowledged up to", plan["ack_floor"]["stream_seq"]),
        ("ack pending", plan["num_ack_pending"]),
        *([("is stopped", plan["problem"])] if plan["problem"] else []),
        ("continues with", plan["next_seq"]),
        ("done, and handed out again", plan["num_again"]),
        ("not done, and skipped", plan["num_skipped"]),
    ]
    print_facts(f"Consumer {plan['name']} of stream {plan['stream_name']}", facts)
