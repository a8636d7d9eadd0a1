"""What notebooks show of values of this package: small tables in the colours of `look.css`, everything escaped.

A notebook asks a value for `_repr_html_`. Each answer brings the colours with it, since it is shown wherever the
notebook is; where its viewer takes styles away, a plain table is left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from storage_core.sequences import SequenceSet

ROW_COUNT_MAX = 20  # of a long list
CLASSES = {  # of look.css, by state
    "current": "current",
    "behind": "behind",
    "rolled_back": "behind",
    "retired": "behind",
    "damaged": "damaged",
    "missing": "missing",
    "foreign": "different",
    "different": "different",
}
STYLE = """\
.look table { border-collapse: collapse; background: var(--ground); color: var(--ink); }
.look caption { text-align: left; font-weight: bold; padding: .3em .8em; }
.look th, .look td { text-align: left; vertical-align: top; padding: .3em .8em; border-bottom: 1px solid var(--line); }
.look thead th { background: var(--raised); color: var(--muted); }
.look td svg { margin-right: .4em; }
"""


class Info(dict[str, Any]):
    """A JSON object that notebooks show as a table."""

    def __init__(self, values: Mapping[str, Any], show: Callable[[Mapping[str, Any]], str]) -> None:
        super().__init__(values)
        self._show = show

    def _repr_html_(self) -> str:
        return self._show(self)


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


@cache
def stylesheet() -> str:
    """Return `look.css`: the colours of everything that is drawn, and of charts."""
    from importlib import resources

    return resources.files("storage_core").joinpath("look.css").read_text("utf-8")


def escape(text: str) -> str:
    from html import escape  # every command imports this module, and few show anything to a notebook

    return escape(text)


def facts(title: str, rows: Sequence[tuple[str, str | Iterable[str]]]) -> str:
    """Return a table of one thing: a name and its value, or its lines, in each row."""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{_lines(value)}</td></tr>" for name, value in rows)
    return _table(title, body)


def listing(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Sequence[str]]]) -> str:
    """Return a table of many things, a row each: the first ROW_COUNT_MAX, and how many there are."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_lines(value)}</td>' for value in row)}</tr>" for row in rows[:ROW_COUNT_MAX])
    if len(rows) > ROW_COUNT_MAX:
        body += f'<tr><td colspan="{len(columns)}">and {len(rows) - ROW_COUNT_MAX:,} more</td></tr>'
    return _table(title, f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")


def marked(state: str, text: str) -> Html:
    """Return text behind a box in the colour of a state; the text has to say the state, too."""
    css = CLASSES.get(state)
    if css is None:
        return Html(escape(text))
    box = f'<rect class="{css}" x="0.5" y="0.5" width="11" height="11"/>'
    return Html(f'<svg width="12" height="12" aria-hidden="true">{box}</svg>{escape(text)}')


# --- what `info()` and reports return


def store_html(info: Mapping[str, Any], cluster: Mapping[str, Any] | None = None) -> str:
    """Return a store: what `store info` says and, if it is given, the states that `cluster info` does."""
    volumes = (
        [_condition(volume) for volume in cluster["volumes"]]
        if cluster
        else [volume["path"] for volume in info["volumes"]]
    )
    return facts(
        "Store",
        [
            ("Volumes", volumes),
            ("Streams", f"{info['streams']:,}"),
            ("Messages", f"{info['messages']:,}"),
            ("Message bytes", f"{info['bytes']:,}"),
        ],
    )


def cluster_html(info: Mapping[str, Any]) -> str:
    """Return the volumes, as `cluster info` describes them."""
    rows = [
        (_condition(volume), "leader" if volume["name"] == info["leader"] else "", f"{volume['lag']:,}")
        for volume in info["volumes"]
    ]
    return listing("Volumes", ("volume", "role", "behind by"), rows)


def stream_html(info: Mapping[str, Any]) -> str:
    """Return a stream, with the state of each of its copies."""
    state, config = info["state"], info["config"]
    lost = [_range(first, end) for first, end in state["lost_ranges"]]
    return facts(
        f"Stream {config['name']}",
        [
            ("Subjects", ", ".join(config["subjects"])),
            ("Messages", f"{state['messages']:,}"),
            ("Message bytes", f"{state['bytes']:,}"),
            ("Bytes on disk", f"{sum(replica['disk_bytes'] for replica in info['cluster']['replicas']):,}"),
            ("Sequences", f"{state['first_seq']:,} to {state['last_seq']:,}"),
            *([("Lost", _some(lost))] if lost else []),
            ("Replicas", [_condition(replica) for replica in info["cluster"]["replicas"]]),
        ],
    )


def consumer_html(info: Mapping[str, Any]) -> str:
    """Return a consumer, with its newest events."""
    events = [f"{event['time'][:19]} {event['kind']}: {event['reason']}" for event in info["events"][-3:]]
    return facts(
        f"Consumer {info['name']} of stream {info['stream_name']}",
        [
            ("Delivered", f"{info['delivered']['stream_seq']:,}"),
            ("Ack floor", f"{info['ack_floor']['stream_seq']:,}"),
            ("Waiting for their acknowledgement", f"{info['num_ack_pending']:,}"),
            ("Delivered more than once", f"{info['num_redelivered']:,}"),
            ("Not delivered yet", f"{info['num_pending']:,}"),
            ("Skipped: removed or lost first", f"{info['num_skipped']:,}"),
            *([("Paused", "yes")] if info["paused"] else []),
            *([("Events", events)] if events else []),
        ],
    )


def check_html(report: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return what a verify, scrub or repair found, and what became of it. `labels`: what people call the volumes."""
    damage = report["damage"]
    lost = [f"{_range(span['first'], span['end'])} of {span['stream']}" for span in report.get("lost", ())]
    verdict = "something is wrong" if not report["ok"] else "all damage was repaired" if damage else "nothing is wrong"
    rows: list[tuple[str, str | Iterable[str]]] = [
        ("Result", marked("current" if report["ok"] else "damaged", verdict)),
        ("Copies of blocks read", f"{report['checked_blocks']:,}"),
    ]
    if "done" in report:
        rows.append(("Reached the end", "yes" if report["done"] else "no: the next scrub resumes there"))
    if lost:
        rows.append(("Lost", _some(lost)))
    made = facts("Checked", rows)
    if damage:
        columns = ("stream", "volume", "sequences", "what is wrong", "repaired")
        places: dict[tuple[str, str, str, bool], list[tuple[int, int]]] = {}
        for item in damage:  # blocks of one volume that lack their files are one row
            volume = labels.get(item["volume"], item["volume"][:8])
            key = (item["stream"], volume, item["reason"], item["repaired"])
            places.setdefault(key, []).append((item["first"], item["end"]))
        listed = [
            (
                stream,
                volume,
                _some([_range(first, end) for first, end in SequenceSet.from_ranges(ranges).ranges()]) or ["metadata"],
                marked("damaged", reason),
                "yes" if repaired else "no",
            )
            for (stream, volume, reason, repaired), ranges in places.items()
        ]
        made += listing("Damage", columns, listed)
    return made


def import_html(report: Mapping[str, Any]) -> str:
    """Return what an import brought, a stream in each row."""
    columns = ("stream", "from", "messages", "lost", "holes", "sequences", "consumers")
    rows = [
        (
            stream["name"],
            stream["source"],
            f"{stream['messages']:,}",
            f"{stream['lost']:,}",
            f"{stream['holes']:,}",
            f"{stream['first_seq']:,} to {stream['last_seq']:,}",
            ", ".join(stream["consumers"]),
        )
        for stream in report["streams"]
    ]
    return listing("Imported", columns, rows)


def _condition(copy: Mapping[str, Any]) -> Html:
    """Return a volume's or replica's path and state, with the reason if there is one."""
    reason = f" ({copy['reason']})" if copy["reason"] else ""
    return marked(copy["state"], f"{copy['path']}: {copy['state']}{reason}")


def _range(first: int, end: int) -> str:
    return f"{first:,}" if end - first == 1 else f"{first:,} to {end - 1:,}"


def _some(lines: Sequence[str]) -> list[str]:
    """Return the first of many lines, and how many there are."""
    left_out = len(lines) - ROW_COUNT_MAX
    return [*lines[:ROW_COUNT_MAX], *([f"and {left_out:,} more"] if left_out > 0 else [])]


# --- markup


def _table(title: str, body: str) -> str:
    style = f"<style>{stylesheet()}{STYLE}</style>"
    return f'<div class="look">{style}<table><caption>{escape(title)}</caption>{body}</table></div>'


def _lines(value: str | Iterable[str]) -> str:
    lines = [value] if isinstance(value, str) else value
    return "<br>".join(line if isinstance(line, Html) else escape(line) for line in lines)
