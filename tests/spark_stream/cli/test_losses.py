"""`jstream repair` where a disk that is away may have messages: nothing is lost until somebody accepts it."""

import json
import shutil
from pathlib import Path

import pytest
from harness.block_places import block_files

from storage_core import Store


def unmount(volume: Path) -> Path:
    """Leave an empty directory in a volume's place; return where the disk is."""
    aside = volume.with_name(f"{volume.name} unmounted")
    volume.rename(aside)
    volume.mkdir()
    return aside


def mount(aside: Path, volume: Path) -> None:
    shutil.rmtree(volume)
    aside.rename(volume)


@pytest.fixture
def unmounted(replicated: Store, volumes: list[Path], blocks_on) -> Path:
    """The third disk, unmounted; message 2 is on it alone."""
    gone = blocks_on(volumes[0])[1].name
    aside = unmount(volumes[2])
    for volume in volumes[:2]:
        next(path for path in blocks_on(volume) if path.name == gone).unlink()
    return aside


def read(trio) -> list[str]:
    return trio.done("stream", "view", "ORDERS", "--raw").split("\n")[:-1]


def problems(trio) -> list[tuple[str, str, str | None]]:
    """Return (level, text, command) of the problems of the stream."""
    found = json.loads(trio("check", "--json").out)["problems"]
    return [(one["level"], one["text"], one["command"]) for one in found if one["subject"] == "stream ORDERS"]


def test_a_disk_that_comes_back_brings_what_no_repair_gave_up(trio, unmounted: Path, volumes: list[Path]) -> None:
    [(level, text, command)] = [problem for problem in problems(trio) if "on no volume at hand" in problem[1]]
    assert (level, command) == ("critical", None)
    assert "has 1 message (2)" in text and f"{volumes[2]} (the volume is missing)" in text
    outcome = trio("repair")
    assert outcome.code == 1
    assert f"no volume at hand has sequences 2 to 2; they may be on {volumes[2]} (the disk that was" in outcome.err
    assert "are lost" not in outcome.err
    (unread,) = json.loads(trio("repair", "--json").out)["unread"]
    assert (unread["stream"], unread["first"], unread["end"]) == ("ORDERS", 2, 3)
    for words in (["view", "ORDERS", "--raw"], ["view", "ORDERS", "--raw", "--on-data-loss", "continue"]):
        failed = trio("stream", *words)
        assert failed.code == 1 and "bring back what is away" in failed.err, "no read goes on past it"
    mount(unmounted, volumes[2])
    assert trio("repair").code == 0
    assert read(trio) == ["body 1", "body 2", "body 3", "body 4"]
    assert trio("verify").code == 0
    assert problems(trio) == []


def test_a_loss_that_was_accepted_is_taken_back(trio, unmounted: Path, volumes: list[Path]) -> None:
    trio("repair")
    outcome = trio("repair", "--accept-loss")
    assert outcome.code == 1 and "no copy has sequences 2 to 2: they are lost" in outcome.err
    assert read(trio) == ["body 1", "body 3", "body 4"]
    assert trio("repair").code == 0
    mount(unmounted, volumes[2])
    outcome = trio("repair")
    assert outcome.code == 1
    assert "sequences 2 to 2 were declared lost, and are on disk-3 now: `jstream repair --take-back`" in outcome.err
    assert problems(trio)[:1] == [
        ("warning", "has 1 message (2) again that were declared lost: they are on disk-3",
         "jstream repair --take-back ORDERS")
    ]  # fmt: skip
    trio("repair")
    assert [event["kind"] for event in json.loads(trio.done("events", "--json"))].count("recoverable") == 1
    outcome = trio("repair", "--take-back", "ORDERS")
    assert outcome.code == 0 and "sequences 2 to 2 are served again" in outcome.err
    assert read(trio) == ["body 1", "body 2", "body 3", "body 4"]
    assert json.loads(trio.done("stream", "info", "ORDERS", "--json"))["state"]["lost_ranges"] == []
    assert trio("verify").code == 0 and problems(trio) == []


def test_what_was_lost_is_discarded_by_nobody_but_who_says_so(
    trio, replicated: Store, unmounted: Path, volumes: list[Path]
) -> None:
    trio("repair", "--accept-loss")
    mount(unmounted, volumes[2])
    trio("repair")
    replicated.edit(deleted_block_retention="0s")
    replicated.maintain()
    replicated.maintain()
    assert len(block_files(volumes[2])) == 4, "its file stays"
    outcome = trio.process("repair", "--discard-lost")
    assert outcome.code == 2 and "pass --force" in outcome.err
    assert trio("repair", "--take-back", "--discard-lost", "--force").code == 2
    assert trio("repair", "ORDERS", "--discard-lost", "--force").code == 2
    assert trio("repair", "--discard-lost", "--force").code == 0
    replicated.maintain()
    replicated.maintain()
    assert len(block_files(volumes[2])) == 3
    assert trio("repair", "--take-back").code == 0
    assert read(trio) == ["body 1", "body 3", "body 4"]


def test_messages_of_another_copy_are_kept_until_somebody_exports_or_discards_them(
    trio, replicated: Store, volumes: list[Path], tmp_path: Path
) -> None:
    """Two of three volumes are put back to copies of before the last two messages."""
    before = [shutil.copytree(path, path.with_name(f"{path.name} of before")) for path in volumes[:2]]
    replicated.stream("ORDERS").append([{"subject": "orders.eu", "data": b"alone %d" % number} for number in (5, 6)])
    for path, volume in zip(before, volumes, strict=False):
        mount(path, volume)
    trio.done("pub", "orders.eu", "other 5")
    outcome = trio("repair")
    assert outcome.code == 1
    assert "2 messages more on disk-3, sequences 5 to 6" in outcome.err
    assert "`jstream export --set-aside ORDERS FILE` writes them to a file" in outcome.err
    assert any("in another copy of the store" in text for _, text, _ in problems(trio))
    file = tmp_path / "aside.parquet"
    report = json.loads(trio.done("export", "ORDERS", file, "--set-aside", "--json"))
    assert (report["messages"], report["first_seq"], report["last_seq"]) == (2, 5, 6)
    lines = trio.done("export", "ORDERS", "-", "--set-aside").splitlines()
    assert [json.loads(line)["data"] for line in lines] == ["alone 5", "alone 6"]
    assert trio("export", "ORDERS", "-", "--set-aside", "--id", "6").code == 2
    trio.done("import", "parquet", file, "--stream", "ORDERS", "--new-sequences")
    assert read(trio) == ["body 1", "body 2", "body 3", "body 4", "other 5", "alone 5", "alone 6"]
    assert trio("repair", "--discard-lost", "--force").code == 0
    assert trio("repair").code == 0 and problems(trio) == []
    assert trio("export", "ORDERS", "-", "--set-aside").code == 1


def test_metadata_of_a_volume_alone_is_not_rebuilt_beside_the_others(trio, replicated, volumes: list[Path]) -> None:
    for path in (volumes[2] / "meta").iterdir():
        path.unlink()
    outcome = trio("stream", "ls", "--store", volumes[2])
    assert outcome.code == 1
    first, _, last = outcome.err.partition("name the others as well")
    assert f"The store has 3 volumes, last at {volumes[0]}, {volumes[1]}" in first and "--adopt" not in first
    assert "Only if most of them are gone for good" in last
    outcome = trio("repair", "--adopt", "--execute", "--store", volumes[2])
    assert outcome.code == 1 and f"{volumes[0]} is a volume of the store as well" in outcome.err
    away = [path.rename(path.with_name(f"{path.name} away")) for path in volumes[:2]]
    planned = trio("repair", "--adopt", "--store", volumes[2])
    assert planned.code == 0 and "1 of the store's 3 volumes have something to adopt" in planned.out
    assert planned.err.endswith("--execute --accept-loss does it\n")
    outcome = trio("repair", "--adopt", "--execute", "--store", volumes[2])
    assert outcome.code == 1 and "say --accept-loss" in outcome.err
    for path, volume in zip(away, volumes[:2], strict=True):
        path.rename(volume)
    assert trio("repair").code == 0
    assert read(trio) == ["body 1", "body 2", "body 3", "body 4"]
