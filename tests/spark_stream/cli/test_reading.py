"""Reading writes nothing: whatever is wrong with a store, whoever only looks leaves every file as it is."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.block_places import flip
from harness.served_ui import served

from storage_core import Store

MESSAGES = 6
STREAM = {"name": "ORDERS", "subjects": ["orders.>"], "block_max_msgs": 1}

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("store", "info"),
    ("stream", "ls"),
    ("stream", "info", "ORDERS"),
    ("stream", "report"),
    ("stream", "find", "--empty"),
    ("stream", "get", "ORDERS", "3"),
    ("stream", "get", "ORDERS", "--last-for", "orders.new"),
    ("stream", "view", "ORDERS", "--on-data-loss", "continue"),
    ("stream", "view", "ORDERS"),
    ("stream", "last", "ORDERS"),
    ("stream", "subjects", "ORDERS"),
    ("stream", "gaps", "ORDERS"),
    ("stream", "edit", "ORDERS", "--max-msgs", "2", "--dry-run"),
    ("stream", "purge", "ORDERS", "--dry-run"),
    ("consumer", "ls", "ORDERS"),
    ("consumer", "info", "ORDERS", "billing"),
    ("consumer", "report"),
    ("consumer", "reset", "ORDERS", "strict"),
    ("cluster", "info"),
    ("events",),
    ("check",),
    ("drift",),
    ("metrics",),
    ("export", "ORDERS", "-", "--on-data-loss", "continue"),
    ("doctor",),
)
PAGES = (
    "/",
    "/streams",
    "/streams/ORDERS/messages",
    "/streams/ORDERS/messages/3",
    "/streams/ORDERS/subjects",
    "/streams/ORDERS/copies",
    "/streams/ORDERS/configuration",
    "/streams/ORDERS/consumers/billing",
    "/streams/ORDERS/download?format=jsonl",
    "/consumers",
    "/volumes",
    "/events",
    "/change/repair",
    "/change/purge?stream=ORDERS",
)


def blocks(volume: Path) -> list[Path]:
    return sorted((volume / "streams").glob("*/*.blk"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def nothing(volumes: list[Path]) -> None:
    """Leave the store as it is."""


def volume_missing(volumes: list[Path]) -> None:
    shutil.rmtree(volumes[1])


def volume_not_mounted(volumes: list[Path]) -> None:
    volume_missing(volumes)
    volumes[1].mkdir()


def two_volumes_missing(volumes: list[Path]) -> None:
    volume_missing(volumes)
    shutil.rmtree(volumes[2])


def volume_foreign(volumes: list[Path]) -> None:
    volume_missing(volumes)
    Store.create(volumes[1]).close()


def volume_old(volumes: list[Path]) -> None:
    older = volumes[1].with_name("older")
    shutil.copytree(volumes[1], older)
    with Store.open(volumes) as store:
        store.stream("ORDERS").publish("orders.new", b"newer")
    volume_missing(volumes)
    shutil.move(older, volumes[1])


def metadata_damaged(volumes: list[Path]) -> None:
    segment = sorted((volumes[1] / "meta").glob("*.log"))[0]
    flip(segment, 5000)


def block_damaged(volumes: list[Path]) -> None:
    block = blocks(volumes[0])[2]
    for volume in volumes[:2]:
        flip(volume / block.relative_to(volumes[0]), block.stat().st_size // 2)


def block_missing_in_two_copies(volumes: list[Path]) -> None:
    block = blocks(volumes[0])[2]
    for volume in volumes[:2]:
        (volume / block.relative_to(volumes[0])).unlink()


def block_missing_and_volume_missing(volumes: list[Path]) -> None:
    block = blocks(volumes[0])[2]
    volume_missing(volumes)
    for volume in (volumes[0], volumes[2]):
        (volume / block.relative_to(volumes[0])).unlink()


def block_missing_everywhere(volumes: list[Path]) -> None:
    block = blocks(volumes[0])[2]
    for volume in volumes:
        (volume / block.relative_to(volumes[0])).unlink()


def range_lost(volumes: list[Path]) -> None:
    block_missing_everywhere(volumes)
    with Store.open(volumes) as store:
        assert store.repair()["lost"]


def consumer_ahead(volumes: list[Path]) -> None:
    with Store.open(volumes) as store:
        store.stream("ORDERS").purge()


TROUBLES: tuple[Callable[[list[Path]], None], ...] = (
    nothing,
    volume_missing,
    volume_not_mounted,
    two_volumes_missing,
    volume_foreign,
    volume_old,
    metadata_damaged,
    block_damaged,
    block_missing_in_two_copies,
    block_missing_and_volume_missing,
    block_missing_everywhere,
    range_lost,
    consumer_ahead,
)


@pytest.fixture(params=TROUBLES, ids=lambda trouble: trouble.__name__)
def troubled(request: pytest.FixtureRequest, volumes: list[Path]) -> list[Path]:
    """The volumes of a store with consumers, one of them paused, to which something has happened."""
    with Store.open(volumes) as store:
        stream = store.add_stream(STREAM)
        for number in range(MESSAGES):
            stream.publish("orders.new", b"message %d " % number * 20)
        for consumer in ({"name": "billing"}, {"name": "strict", "on_data_loss": "fail"}, {"name": "paused"}):
            stream.add_consumer(consumer)
        stream.consumer("strict").fetch(1)
        stream.consumer("paused").pause(3600)
    request.param(volumes)
    return volumes


def contents(volumes: list[Path]) -> dict[str, bytes]:
    """Return every file of the volumes but those that are only locked."""
    files = [path for volume in volumes for path in volume.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): path.read_bytes() for path in files}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def test_no_command_that_reads_writes_anything(troubled: list[Path], trio) -> None:
    before = contents(troubled)
    for words in COMMANDS * 2:
        outcome = trio(*words)
        assert "Traceback" not in outcome.err, (words, outcome)
        assert changed(before, contents(troubled)) == [], words


def test_no_page_writes_anything(troubled: list[Path]) -> None:
    before = contents(troubled)
    with served(troubled, allows_changes=True) as browser:
        for path in PAGES * 2:
            assert browser(path).code < 600, path
            assert changed(before, contents(troubled)) == [], path
