"""`jstream stream add|edit|ls|info|report|find|compact|seal|copy|rm`: streams as wholes."""

import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_stream.cli.compact import compact
from spark_stream.cli.failures import VerbGroup, WrongUsage
from spark_stream.cli.options import (
    AllowOverlapOption,
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
    volume_labels,
    warn_of_overlaps,
    warn_of_replicas,
)
from spark_stream.cli.quantities import parse_since_ns
from spark_stream.cli.spelling import spells
from spark_stream.cli.storage_options import put_into_environment
from spark_stream.cli.stream_options import STREAM_KEYS, ConfigOption, read_config_file
from spark_stream.cli.watching import WatchOption, show_repeatedly
from spark_stream.look.terminal import counted, print_facts, print_json, print_lines, print_table, say, show_size
from spark_stream.plans import edit_removes, show_value

if TYPE_CHECKING:
    from storage_core import Store

app = typer.Typer(cls=VerbGroup, help="Create, configure, read and purge streams.")


@app.callback()
def group(context: typer.Context, store: GroupStoreOption = None) -> None:
    remember_store(context, store)


@app.command("add")
@spells(STREAM_KEYS)
def add(
    name: StreamArgument,
    spelled: dict[str, Any],
    config: ConfigOption = None,
    allow_overlap: AllowOverlapOption = False,
    defaults: DefaultsOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Create a stream. Without --subjects it takes the subject that is its name."""
    chosen = {**read_config_file(config), **spelled, "name": name}
    with open_store(store, take_over=take_over) as opened:
        info, labels = opened.add_stream(chosen, allow_overlap=allow_overlap).info(), volume_labels(opened)
        if allow_overlap:
            warn_of_overlaps(opened, [name])
    say(f"created stream {name}")
    _print_info(info, labels, json)


@app.command("edit")
@spells(STREAM_KEYS)
def edit(
    name: StreamArgument,
    spelled: dict[str, Any],
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    allow_overlap: AllowOverlapOption = False,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Change a stream's configuration: the keys that are given, and no others.

    Asks first if a limit that is lower now removes messages.
    """
    wanted = {key: value for key, value in {**read_config_file(config), **spelled}.items() if key != "name"}
    if not wanted:
        raise WrongUsage("nothing to change: pass an option that names a new value")
    with open_store(store, take_over=take_over and not dry_run, read_only=dry_run) as opened:
        stream = opened.stream(name)
        before = stream.config.to_json()
        changes = {key: value for key, value in wanted.items() if key not in before or before[key] != value}
        removed = edit_removes(stream, changes) if changes else None
        if removed and not dry_run:
            require_consent_possible(f"stream edit, which removes {removed},", force)
            ask_consent(f"Remove {removed} from stream {name}?", force)
        if changes and not dry_run:
            stream.edit(changes, allow_overlap=allow_overlap)
            if "subjects" in changes:
                warn_of_overlaps(opened, [name])
        info, labels = stream.info(), volume_labels(opened)
    for key, value in changes.items():
        say(f"{key}: {show_value(key, before.get(key))} -> {show_value(key, value)}")
    if removed:
        say(f"{'would remove' if dry_run else 'removed'} {removed}")
    if not changes:
        say("nothing changes")
    if not dry_run:
        _print_info(info, labels, json)
    elif json:
        print_json({**before, **changes})


@app.command("ls")
def list_streams(
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="FILTER", help="Only streams that may hold such subjects.")
    ] = None,
    names: NamesOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """List the streams."""
    with open_store(store, read_only=True) as opened:
        streams = [info for info in _summaries(opened) if subject is None or _may_hold(info, subject)]
    _print_list(streams, names, json)


@app.command("info")
def info(name: StreamArgument, store: StoreOption = "", json: JsonOption = False) -> None:
    """Show one stream: configuration, state, replicas."""
    with open_store(store, read_only=True) as opened:
        described, labels = opened.report([name], exact_times=True)[0], volume_labels(opened)
    _print_info(described, labels, json)


@app.command("report")
def report(watch: WatchOption = None, store: StoreOption = "", json: JsonOption = False) -> None:
    """Show the copies of all streams, and which of them are current."""
    show_repeatedly(watch, lambda: _show_report(store, json))


@app.command("find")
def find(
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="FILTER", help="Streams that may hold such subjects.")
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Streams without messages.")] = False,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="DURATION", help="Streams whose last message is older: 1h, 7d.")
    ] = None,
    created: Annotated[
        str | None, typer.Option("--created", metavar="DURATION", help="Streams made longer ago: 1h, 7d.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", metavar="N", help="Streams with so many copies or fewer.")
    ] = None,
    invert: Annotated[bool, typer.Option("--invert", "-i", help="The streams that do not meet them.")] = False,
    names: NamesOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Find the streams that meet all criteria."""
    if subject is None and not empty and idle is None and created is None and replicas is None:
        raise WrongUsage("no criterion: pass --subject, --empty, --idle, --created or --replicas")
    now_ns = time.time_ns()
    idle_since = _moment(idle, "--idle", now_ns)
    created_before = _moment(created, "--created", now_ns)

    def meets(stream: dict[str, Any]) -> bool:
        state, config = stream["state"], stream["config"]
        return (
            (subject is None or _may_hold(stream, subject))
            and (not empty or not state["messages"])
            and (idle_since is None or not state["messages"] or state["last_ts"] < idle_since)
            and (created_before is None or stream["created"] < created_before)
            and (replicas is None or config["num_replicas"] <= replicas)
        )

    with open_store(store, read_only=True) as opened:
        streams = [stream for stream in _summaries(opened) if meets(stream) is not invert]
    _print_list(streams, names, json)


@app.command("rm")
def remove(
    name: StreamArgument,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
) -> None:
    """Delete a stream with all its messages."""
    require_consent_possible("stream rm", force)
    with open_store(store, take_over=take_over) as opened:
        stream = opened.stream(name)
        messages = counted(stream.state().message_count, "message")
        ask_consent(f"Delete stream {name} with {messages}?", force)
        stream.delete()
    say(f"stream {name} was deleted with {messages}")


@app.command("seal")
def seal(
    name: StreamArgument,
    force: ForceOption = False,
    take_over: TakeOverOption = False,
    store: StoreOption = "",
) -> None:
    """Seal a stream: it keeps the messages that it has, and takes no others. That cannot be taken back."""
    with open_store(store, take_over=take_over) as opened:
        stream = opened.stream(name)
        messages = counted(stream.state().message_count, "message")
        if stream.config.sealed:
            say(f"stream {name} is sealed already, with {messages}")
            return
        require_consent_possible("stream seal", force, "cannot be taken back")
        ask_consent(f"Seal stream {name} with {messages} for ever?", force)
        stream.edit(sealed=True)
    say(f"stream {name} is sealed with {messages}")


@app.command("copy")
def copy(
    name: StreamArgument,
    target: Annotated[
        str, typer.Argument(metavar="VOLUME[,VOLUME]", help="Volumes of the store that gets the copy; any one leads.")
    ],
    as_name: Annotated[str, typer.Option("--as", metavar="NAME", help="What to call it there.")] = "",
    take_over: TakeOverOption = False,
    store: StoreOption = "",
    json: JsonOption = False,
) -> None:
    """Copy a stream into another store, with its sequences and consumers; the same command, run again, resumes."""
    from spark_stream.cli.verify import progress_bar
    from storage_core.store.ingest.from_store import copy_stream

    put_into_environment()  # both stores are opened, and one may be on disks
    source_store, target_store = open_store(store, read_only=True), open_store(target, take_over)
    with source_store as source, target_store as opened, progress_bar("blocks") as progress:
        copied = copy_stream(source, opened, name, as_name, progress)
        warn_of_overlaps(opened, [copied["name"]])
    if json:
        print_json(copied)
        return
    if copied["already"]:
        say(f"stream {copied['name']} of {target} is a copy already, up to sequence {copied['last_seq']}")
        return
    count = f"{counted(copied['messages'], 'message')} ({show_size(copied['bytes'])})"
    say(f"copied {name} to {target} as {copied['name']}: {count}, up to sequence {copied['last_seq']}")


def _summaries(store: "Store") -> list[dict[str, Any]]:
    """Return all streams without their replicas, from metadata alone: thousands of them take a moment."""
    from storage_core.store.describe import by_name, stream_summary

    return [stream_summary(stream) for stream in by_name(store.view().state)]


def _may_hold(info: dict[str, Any], subject: str) -> bool:
    """Return whether the stream takes some subject that the filter takes too."""
    from storage_core.subjects import filters_overlap, is_filter

    if not is_filter(subject):
        raise WrongUsage(f"--subject {subject!r} is no filter: tokens joined by dots, * for one, > for the rest")
    return any(filters_overlap(own, subject) for own in info["config"]["subjects"])


def _moment(text: str | None, option: str, now_ns: int) -> str | None:
    """Return the time before which `text` draws the line, spelled as in `info`: there, text order is time order."""
    if text is None:
        return None
    from spark_stream.look.messages import show_time

    return show_time(parse_since_ns(text, option, now_ns))


def _print_list(infos: list[dict[str, Any]], names_only: bool, json: bool) -> None:
    """Print streams: as JSON a list of names, else a table, or the bare names."""
    names = [info["config"]["name"] for info in infos]
    if json:
        print_json(names)
    elif names_only:
        print_lines(names)
    elif not infos:
        say("no streams")
    else:
        columns = ("name", "subjects", "replicas", "messages", "message bytes", "first", "last", "last message")
        print_table(columns, [_row(info) for info in infos], "Streams")


def _row(info: dict[str, Any]) -> list[Any]:
    config, state = info["config"], info["state"]
    return [
        config["name"],
        ",".join(config["subjects"]),
        config["num_replicas"],
        state["messages"],
        show_size(state["bytes"]),
        state["first_seq"],
        state["last_seq"],
        state["last_ts"] if state["messages"] else None,
    ]


def _show_report(store: str, json: bool) -> None:
    with open_store(store, read_only=True) as opened:
        infos = opened.report()
        warn_of_replicas(opened, infos)
    if json:
        print_json(infos)
    elif not infos:
        say("no streams")
    else:
        columns = (
            "name", "messages", "message bytes", "first", "last", "removed", "lost", "replicas", "damaged blocks",
        )  # fmt: skip
        print_table(columns, [_report_row(info) for info in infos], "Streams")


def _report_row(info: dict[str, Any]) -> list[Any]:
    state, replicas = info["state"], info["cluster"]["replicas"]
    states = [replica["state"] for replica in replicas]
    counts = {state: states.count(state) for state in sorted(states, key=lambda state: (state != "current", state))}
    return [
        info["config"]["name"],
        state["messages"],
        show_size(state["bytes"]),
        state["first_seq"],
        state["last_seq"],
        _removed(state),
        sum(end - first for first, end in state["lost_ranges"]),
        ", ".join(f"{count} {state}" for state, count in counts.items()),
        sum(replica["damaged_blocks"] for replica in replicas),
    ]


def _removed(state: Mapping[str, Any]) -> int:
    """Return how many messages the stream had and does not show, by whatever removed them, but for lost ones."""
    lost = sum(end - first for first, end in state["lost_ranges"])
    return max(0, int(state["last_seq"] - state["messages"] - state["num_duplicates"] - lost))


def _print_info(info: dict[str, Any], labels: Mapping[str, str], json: bool) -> None:
    if json:
        print_json(info)
        return

    from storage_core.quantities import format_duration

    config, state, cluster = info["config"], info["state"], info["cluster"]
    marker_ttl = config["subject_delete_marker_ttl"]
    facts = [
        ("created", info["created"]),
        ("subjects", ", ".join(config["subjects"])),
        ("replicas", config["num_replicas"]),
        ("description", config["description"] or None),
        ("compression", config["compression"]),
        ("max message size", "no limit" if config["max_msg_size"] < 0 else show_size(config["max_msg_size"])),
        ("max messages", "no limit" if config["max_msgs"] < 0 else config["max_msgs"]),
        ("max bytes", "no limit" if config["max_bytes"] < 0 else show_size(config["max_bytes"])),
        ("max age", format_duration(config["max_age"]) if config["max_age"] else "no limit"),
        *([("max per subject", config["max_msgs_per_subject"])] if config["max_msgs_per_subject"] >= 0 else []),
        ("max consumers", "no limit" if config["max_consumers"] < 0 else config["max_consumers"]),
        *([("retention", config["retention"])] if config["retention"] != "limits" else []),
        ("discard", config["discard"] + (", per subject" if config["discard_new_per_subject"] else "")),
        ("dupe window", format_duration(config["duplicate_window"])),
        ("deny delete", config["deny_delete"]),
        ("deny purge", config["deny_purge"]),
        *([("allow rollup", True)] if config["allow_rollup_hdrs"] else []),
        *([("allow message TTL", True)] if config["allow_msg_ttl"] else []),
        *([("delete markers", format_duration(marker_ttl))] if marker_ttl else []),
        *([("sealed", True)] if config["sealed"] else []),
        ("block size", f"{show_size(config['block_max_bytes'])} or {config['block_max_msgs']:,} messages"),
        *([("block age", format_duration(config["block_max_age"]))] if config["block_max_age"] else []),
        *([("archive command", shlex.join(config["archive_command"]))] if config["archive_command"] else []),
        *((f"metadata {key}", value) for key, value in sorted(config["metadata"].items())),
    ]
    print_facts(f"Stream {config['name']}", facts)
    first, last = state["first_seq"], state["last_seq"]
    print_facts(
        "State",
        [
            ("messages", state["messages"]),
            ("message bytes", show_size(state["bytes"])),
            ("first sequence", f"{first} at {state['first_ts']}" if state["messages"] else first),
            ("last sequence", f"{last} at {state['last_ts']}" if state["messages"] else last),
            ("removed", _removed(state)),
            *([("duplicates", state["num_duplicates"])] if state["num_duplicates"] else []),
            ("lost ranges", ", ".join(f"{begin} to {end - 1}" for begin, end in state["lost_ranges"]) or None),
            ("consumers", state["consumer_count"]),
            ("incarnation", state["incarnation"]),
        ],
    )
    columns = ("state", "current", "lag", "on disk", "damaged_blocks", "last_scrub", "path")
    rows = [
        [labels.get(replica["name"], replica["name"]), *(shown.get(column) for column in columns)]
        for replica in cluster["replicas"]
        for shown in [{**replica, "on disk": show_size(replica["disk_bytes"])}]
    ]
    print_table(["volume", *(column.replace("_", " ") for column in columns)], rows, "Replicas")
    for replica in cluster["replicas"]:
        if replica["reason"]:
            say(f"{labels.get(replica['name'], replica['name'])} is {replica['state']}: {replica['reason']}")


app.command("compact")(compact)
