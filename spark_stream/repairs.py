"""What a repair did, and what waits for a decision after it, in sentences: for the command line and the pages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_stream.look.terminal import counted


def repair_verdict(report: Mapping[str, Any]) -> str:
    """Return in one sentence what a repair read, and what was wrong with it."""
    bad = damage_counts(report["damage"])
    if not bad:
        return f"{checked(report)}: {'all is well' if report['ok'] else 'something needs your decision'}"
    left = sum(not place["repaired"] for place in report["damage"])
    return f"{checked(report)}; bad or missing: {bad}; {f'{left} left' if left else 'all repaired'}"


def checked(report: Mapping[str, Any]) -> str:
    """Return what was read. Each volume of a stream has a copy of each of its blocks."""
    return f"{_copies(report['checked_blocks'])} checked"


def damage_counts(damage: Sequence[Mapping[str, Any]]) -> str:
    """Return what is bad: copies of blocks, and volumes as a whole with their metadata; nothing if nothing is."""
    copies = len({(place["stream"], place["volume"], place["file"]) for place in damage if place["stream"]})
    volumes = len({place["volume"] for place in damage if not place["stream"]})
    parts = [counted(volumes, "volume")] if volumes else []
    return " and ".join([*parts, *([_copies(copies)] if copies else [])])


def _copies(count: int) -> str:
    return f"{count} {'copy of a block' if count == 1 else 'copies of blocks'}"


def repair_sentences(report: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield what became of messages that no copy had, and what may be done about them."""
    for place in report["taken_back"]:
        yield f"stream {place['stream']}: sequences {_range(place)} are served again"
    for place in report["lost"]:
        yield f"stream {place['stream']}: no copy has sequences {_range(place)}: they are lost"
    for place in report["unread"]:
        where = ", ".join(place["may_be_on"])
        yield (
            f"stream {place['stream']}: no volume at hand has sequences {_range(place)}; they may be on {where}. Bring "
            "that back and repair again; if it is gone for good, `jstream repair --accept-loss` declares them lost"
        )
    for place in report["recoverable"]:
        where = ", ".join(labels.get(name, name) for name in place["volumes"])
        yield (
            f"stream {place['stream']}: sequences {_range(place)} were declared lost, and are on {where} now: `jstream "
            "repair --take-back` serves them again, `jstream repair --discard-lost` gives them up"
        )
    for messages in report["set_aside"]:
        label = labels.get(messages["volume"], messages["volume"])
        ranges = ", ".join(f"{first} to {end - 1}" for first, end in messages["ranges"][:5])
        yield (
            f"stream {messages['stream']}: another copy of the store had {counted(messages['messages'], 'message')} "
            f"more on {label}, sequences {ranges}; its log is in {label}/{messages['directory']}, and their blocks are "
            f"kept: `jstream export --set-aside {messages['stream']} FILE` writes them to a file, `jstream repair "
            "--discard-lost` gives them up"
        )


def _range(place: Mapping[str, Any]) -> str:
    return f"{place['first']} to {place['end'] - 1}"
