"""`jstream consumer add|ls|info|report|rm|pause|resume`: durable consumers as wholes."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spark_stream.cli.consumer_options import CONSUMER_KEYS, configuration
from spark_stream.cli.failures import VerbGroup
from spark_stream.cli.options import (
    AsksNothingOption,
    DefaultsOption,
    ForceOption,
    GroupStoreOption,
    JsonOption,
    NamesOption,
    StoreOption,
    StreamArgument,
    TakeOverOption,
    ask_consent,
    open_store,
    remember_store,
    require_consent_possible,
)
from spark_stream.cli.spelling import spells
from spark_stream.cli.stream_options import ConfigOption
from spark_stream.cli.watching import WatchOption, show_repeatedly
from spark_stream.look.terminal import print_facts, print_json, print_lines, print_table, say, show_span
from spark_stream.plans import seconds_until

app = typer.Typer(cls=VerbGroup, help="Durable consumers: create them, see their lag, move them.")
ConsumerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")]
REPORT_COLUMNS = (
    "stream", "consumer", "delivered", "ack floor", "ack pending", "redelivered", "pending", "skipped",
    "lag", "behind", "state",
)  # fmt: skip


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("add")
@spells(CONSUMER_KEYS)
def add(
    stream: StreamArgument,
    name: ConsumerArgument,
    spelled: dict[str, Any],
    config: ConfigOption = None,
    pull: Annotated[bool, typer.Option("--pull", help="No effect; accepted for compatibility with `nats`.")] = False,
    defaults: DefaultsOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Create a consumer. By default it starts with the first message, and each message must be acknowledged."""
    chosen = {**configuration(spelled, config), "name": name}
    chosen.pop("durable_name", None)  # NATS' second word for it, in what its own command printed
    with open_store(store, take_over=take_over) as opened:
        info = opened.stream(stream).add_consumer(chosen).info()
        subjects = opened.stream(stream).config.subjects
    say(f"created consumer {name} of stream {stream}")
    _note_idle_filters(info["config"]["filter_subjects"], stream, subjects)
    _print_info(info, json)


def _note_idle_filters(filters: Sequence[str], stream: str, subjects: Sequence[str]) -> None:
    """Say which filters are for nothing: what the stream takes now they do not match, though what it took once may."""
    from storage_core.subjects import filters_overlap

    for wanted in filters:
        if not any(filters_overlap(wanted, subject) for subject in subjects):
            say(f"note: filter {wanted} matches nothing that {stream} takes, {', '.join(subjects)}")


@app.command("ls")
def list_consumers(
    stream: StreamArgument,
    names: NamesOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """List the consumers of a stream."""
    from storage_core.store.consumers.position import position_in

    with open_store(store, read_only=True) as opened:
        state = opened.stream_state(stream)
        consumers = sorted(consumer.name for consumer in state.consumers.values())
        if json:
            print_json(consumers)
        elif names:
            print_lines(consumers)
        elif not consumers:
            say(f"stream {stream} has no consumers")
        else:
            rows = [_row(position_in(opened, state, consumer).info()) for consumer in consumers]
            columns = ("name", "filter", "ack", "delivered", "ack floor", "ack pending", "pending", "description")
            print_table(columns, rows, f"Consumers of {stream}")


@app.command("info")
def info(stream: StreamArgument, name: ConsumerArgument, store: StoreOption = "", json: JsonOption = False) -> None:
    """Show one consumer: configuration, state, what happened to it."""
    from storage_core.store.consumers.position import position_in

    with open_store(store, read_only=True) as opened:
        described = position_in(opened, opened.stream_state(stream), name).info()
    _print_info(described, json)


@app.command("report")
def report(
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="Only the consumers of this stream.", show_default=False)
    ] = None,
    watch: WatchOption = None,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Show how far each consumer is behind its stream: in messages not acknowledged, and since when they wait."""
    show_repeatedly(watch, lambda: _show_report(stream, store, json))


def _show_report(stream: str | None, store: str, json: bool) -> None:
    from storage_core.store.consumers.lag import consumer_report

    with open_store(store, read_only=True) as opened:
        consumers = consumer_report(opened, None if stream is None else [stream])
    if json:
        print_json(consumers)
        return
    if not consumers:
        say("no consumers" if stream is None else f"stream {stream} has no consumers")
        return
    print_table(REPORT_COLUMNS, [_report_row(consumer) for consumer in consumers], "Consumers")
    for consumer in consumers:
        _say_position(consumer)


@app.command("rm")
def remove(
    stream: StreamArgument,
    name: ConsumerArgument,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
) -> None:
    """Delete a consumer: its place in the stream is forgotten. The messages stay."""
    require_consent_possible("consumer rm", force)
    with open_store(store, take_over=take_over) as opened:
        consumer = opened.stream(stream).consumer(name)
        floor = consumer.info()["ack_floor"]["stream_seq"]
        ask_consent(f"Delete consumer {name} of stream {stream}, which has acknowledged up to {floor}?", force)
        consumer.delete()
    say(f"consumer {name} of stream {stream} was deleted; it had acknowledged up to {floor}")


@app.command("pause")
def pause(
    stream: StreamArgument,
    name: ConsumerArgument,
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="For how long, 90s or 2h; or until when, in ISO 8601.")],
    force: AsksNothingOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Pause a consumer: it hands out no messages for a while. Delivered messages can be acknowledged."""
    with open_store(store, take_over=take_over) as opened:
        consumer = opened.stream(stream).consumer(name)
        consumer.pause(seconds_until(until))
        described = consumer.info()
    say(f"consumer {name} of stream {stream} is paused for {show_span(described['pause_remaining'] / 1e9)}")
    if json:
        print_json(described)


@app.command("resume")
def resume(
    stream: StreamArgument,
    name: ConsumerArgument,
    force: AsksNothingOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """End the pause of a consumer."""
    with open_store(store, take_over=take_over) as opened:
        consumer = opened.stream(stream).consumer(name)
        consumer.resume()
        described = consumer.info()
    say(f"consumer {name} of stream {stream} hands out messages")
    if json:
        print_json(described)


def _row(info: dict[str, Any]) -> list[Any]:
    config = info["config"]
    return [
        info["name"],
        ",".join(config["filter_subjects"]) or None,
        config["ack_policy"],
        info["delivered"]["stream_seq"],
        info["ack_floor"]["stream_seq"],
        info["num_ack_pending"],
        info["num_pending"],
        config["description"] or None,
    ]


def _report_row(info: dict[str, Any]) -> list[Any]:
    lag = info["lag"]
    return [
        info["stream_name"],
        info["name"],
        info["delivered"]["stream_seq"],
        info["ack_floor"]["stream_seq"],
        info["num_ack_pending"],
        info["num_redelivered"],
        info["num_pending"],
        info["num_skipped"],
        lag["messages"],
        show_span(lag["seconds"]) if lag["messages"] else None,
        "stopped" if info["problem"] else "paused" if info["paused"] else "ok",
    ]


def _say_position(info: dict[str, Any]) -> None:
    """Say why a consumer is stopped, or where it continues without help."""
    name, moves_to = f"consumer {info['name']} of stream {info['stream_name']}", info["moves_to"]
    if info["problem"]:
        say(f"{name} is stopped: {info['problem']}")
    elif moves_to is not None:
        say(f"{name} continues with {moves_to['next_seq']} at its next read: {moves_to['reason']}")


def _print_info(info: dict[str, Any], json: bool) -> None:
    if json:
        print_json(info)
        return

    from storage_core.quantities import format_duration

    config = info["config"]
    begins = {
        "by_start_sequence": f"sequence {config['opt_start_seq']}",
        "by_start_time": f"from {config['opt_start_time']}",
    }
    max_deliver, max_pending = config["max_deliver"], config["max_ack_pending"]
    facts = [
        ("created", info["created"]),
        ("begins with", begins.get(config["deliver_policy"], config["deliver_policy"])),
        ("filter", ", ".join(config["filter_subjects"]) or None),
        ("ack policy", config["ack_policy"]),
        ("ack wait", format_duration(config["ack_wait"])),
        ("max deliver", "no limit" if max_deliver < 0 else max_deliver),
        ("max ack pending", "no limit" if max_pending < 0 else max_pending),
        ("on data loss", config["on_data_loss"]),
        ("description", config["description"] or None),
        *((f"metadata {key}", value) for key, value in sorted(config["metadata"].items())),
    ]
    print_facts(f"Consumer {info['name']} of stream {info['stream_name']}", facts)
    state = [
        ("delivered up to", info["delivered"]["stream_seq"]),
        ("acknowledged up to", info["ack_floor"]["stream_seq"]),
        ("ack pending", info["num_ack_pending"]),
        ("redelivered", info["num_redelivered"]),
        ("pending", info["num_pending"]),
        ("skipped", info["num_skipped"]),
        *([("cannot be read now", info["num_unreadable"])] if info["num_unreadable"] else []),
        ("paused", f"for {show_span(info['pause_remaining'] / 1e9)}" if info["paused"] else False),
        ("incarnation", info["incarnation"]),
    ]
    print_facts("State", state)
    _say_position(info)
    if info["events"]:
        columns = ("time", "kind", "before", "after", "reason")
        print_table(columns, [[event[column] for column in columns] for event in info["events"]], "Events")
