"""`jstream verify`, `scrub`, `repair` and `maintain` of a store on three volumes."""

import json
import shutil
import signal

import pytest
from harness.block_places import flip

from storage_core import Store
from storage_core.errors import StoreBusyError
from storage_core.paths import store_label


def states_of(trio) -> list[str]:
    return [volume["state"] for volume in json.loads(trio.done("cluster", "info", "--json"))["volumes"]]


def check_whole(trio) -> None:
    """Check that all copies are current and equal, and that everything is read."""
    replicas = json.loads(trio.done("stream", "info", "ORDERS", "--json"))["cluster"]["replicas"]
    assert [one["state"] for one in replicas] == ["current"] * 3
    assert len({one["digest"] for one in replicas}) == 1
    assert trio.done("stream", "view", "ORDERS", "--raw") == "body 1\nbody 2\nbody 3\nbody 4\n"
    assert json.loads(trio.done("verify", "--json")) == {"ok": True, "checked_blocks": 12, "damage": []}


def test_a_damaged_copy_is_found_by_verify_and_named_with_its_volume(trio, replicated, volumes, blocks_on) -> None:
    flip(blocks_on(volumes[1])[2])
    outcome = trio("verify", "--json")
    assert outcome.code == 1
    (found,) = json.loads(outcome.out)["damage"]
    assert (found["volume"], found["file"]) == (replicated.volumes()[1].name, str(blocks_on(volumes[1])[2]))
    assert (found["first"], found["end"], found["repaired"]) == (3, 4, False)


@pytest.mark.parametrize("bad", [[0], [1], [2], [0, 1], [1, 2], [2, 0]])
def test_repair_brings_bad_copies_back_from_good_ones_and_is_done_then(
    trio, replicated, volumes, blocks_on, bad: list[int]
) -> None:
    for number in bad:
        flip(blocks_on(volumes[number])[1])
        blocks_on(volumes[number])[3].unlink()
    outcome = trio("repair", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["ok"], found["lost"]) == (0, True, [])
    assert all(one["repaired"] for one in found["damage"])
    assert trio("repair").err == "12 copies of blocks checked: all is well\n"
    check_whole(trio)
    assert "repaired" in {event["kind"] for event in json.loads(trio.done("events", "--json"))}


def test_repair_is_told_for_people(trio, replicated, volumes, blocks_on) -> None:
    flip(blocks_on(volumes[2])[0])
    outcome = trio("repair")
    assert outcome.code == 0
    heading, row = outcome.out.splitlines()
    assert heading.split()[-2:] == ["reason", "repaired"]
    assert row.startswith("ORDERS ")
    assert row.endswith("  yes")
    assert outcome.err == "12 copies of blocks checked; bad or missing: 1 copy of a block; all repaired\n"


@pytest.mark.parametrize("blank", [False, True])
def test_a_lost_volume_is_filled_again(trio, replicated, volumes, blank: bool) -> None:
    shutil.rmtree(volumes[1])
    if blank:
        volumes[1].mkdir()
    assert states_of(trio) == ["current", "missing", "current"]
    outcome = trio("repair", "--json")
    assert (outcome.code, json.loads(outcome.out)["ok"]) == (0, True)
    check_whole(trio)


def test_what_no_volume_has_is_declared_lost_once_and_shown(trio, replicated, volumes, blocks_on) -> None:
    for volume in volumes:
        flip(blocks_on(volume)[1])
    outcome = trio("repair")
    assert outcome.code == 1
    assert "stream ORDERS: no copy has sequences 2 to 2: they are lost\n" in outcome.err
    again = trio("repair", "--json")
    assert (again.code, json.loads(again.out)["lost"]) == (0, [])
    info = json.loads(trio.done("stream", "info", "ORDERS", "--json"))
    assert info["state"]["lost_ranges"] == [[2, 3]]
    assert {one["state"] for one in info["cluster"]["replicas"]} == {"current"}
    assert "lost ranges: 2 to 2" in trio.done("stream", "info", "ORDERS")
    assert trio.done("stream", "view", "ORDERS", "--raw") == "body 1\nbody 3\nbody 4\n"
    assert trio.done("pub", "orders.new", "body 5") == "ORDERS 5\n"
    assert [event["kind"] for event in json.loads(trio.done("events", "--stream", "ORDERS", "--json"))].count("lost")


def test_only_the_streams_that_are_named_are_repaired(trio, replicated, volumes, blocks_on) -> None:
    replicated.add_stream({"name": "OTHER"}).publish("OTHER", b"x")
    flip(blocks_on(volumes[0])[0])
    assert json.loads(trio.done("repair", "OTHER", "--json"))["checked_blocks"] == 3
    assert trio("verify").code == 1
    assert trio("repair", "NONE").code == 1
    assert trio("repair", "ORDERS").code == 0
    assert trio("verify").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["repair", "--execute"],
        ["repair", "ORDERS", "--adopt"],
        ["scrub", "--limit", "0"],
        ["scrub", "--limit", "much"],
        ["scrub", "--rate", "-1"],
        ["maintain", "--watch", "--every", "0s"],
        ["maintain", "--every", "60"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage(trio, replicated, words: list[str]) -> None:
    outcome = trio(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")


def test_scrub_reads_everything_in_portions_and_then_begins_anew(trio, replicated) -> None:
    portions = [json.loads(trio.done("scrub", "--limit", "1", "--json"))]
    while not portions[-1]["done"]:
        portions.append(json.loads(trio.done("scrub", "--limit", "1", "--json")))
    assert len(portions) > 1
    assert sum(one["checked_blocks"] for one in portions) == 12
    assert all(volume["last_scrub"] for volume in json.loads(trio.done("cluster", "info", "--json"))["volumes"])
    outcome = trio("scrub", "--limit", "1")
    assert outcome.err.endswith("there is more to read: the next scrub continues from here\n")
    assert trio("scrub", "--rate", "1GB").code == 0


def test_scrub_finds_damage_and_mends_nothing(trio, replicated, volumes, blocks_on) -> None:
    bad = blocks_on(volumes[2])[3]
    flip(bad)
    before = bad.read_bytes()
    outcome = trio("scrub")
    assert outcome.code == 1
    assert f" {bad.relative_to(volumes[2].parent)} " in outcome.out
    assert (
        outcome.err
        == "12 copies of blocks checked; bad or missing: 1 copy of a block; `jstream repair` brings copies and volumes "
        "back from good ones\n"
    )
    assert bad.read_bytes() == before
    assert "damaged" in {event["kind"] for event in replicated.events()}


def test_files_of_a_lost_volume_are_one_row_and_each_is_in_the_json(trio, replicated, volumes) -> None:
    for number in range(3):
        trio.done("pub", "orders.new", f"number {number}")
    shutil.rmtree(volumes[1])
    found = trio.done("repair")
    (row,) = [line for line in found.splitlines() if line.startswith("ORDERS")]
    info = json.loads(trio.done("stream", "info", "ORDERS", "--json"))
    assert f" {info['state']['last_seq'] + 1} " in row and "files" in row and row.endswith("yes")
    shutil.rmtree(volumes[1])
    damage = json.loads(trio.done("repair", "--json"))["damage"]
    files = [place["file"] for place in damage if place["stream"] == "ORDERS"]
    assert len(files) == len(set(files)) == int(row.partition(" files")[0].split()[-1]) > 3


def test_maintain_fetches_what_is_missing(trio, replicated, volumes, blocks_on) -> None:
    blocks_on(volumes[1])[0].unlink()
    outcome = trio("maintain")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "maintenance is done\n")
    check_whole(trio)


def test_maintain_goes_on_until_it_is_interrupted(trio, replicated, volumes, blocks_on) -> None:
    follow = ["events", "--follow", "--last", "100"]  # it may be up only when the copy is there again
    with trio.start("maintain", "--watch", "--every", "50ms") as watching, trio.start(*follow) as told:
        assert watching.stderr.readline() == b"maintenance is done\n"
        blocks_on(volumes[2])[1].unlink()
        for line in told.stdout:
            if b" repaired: stream ORDERS" in line:
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
        told.kill()
    check_whole(trio)


def test_one_process_watches_and_sigterm_ends_it(trio, replicated, tmp_path) -> None:
    textfile = tmp_path / "shop.prom"
    watch = ["maintain", "--watch", "--every", "1h", "--metrics-textfile", textfile]
    with trio.start(*watch) as watching:
        assert watching.stderr.readline() == b"maintenance is done\n"
        assert "jstream_maintain_last_run_success{" in textfile.read_text()
        assert f'jstream_pending_delete_blocks{{store="{store_label(replicated.paths)}"}} 0.0' in textfile.read_text()
        second = trio("maintain", "--watch")
        assert second.code == 1 and "[JSTREAM_STORE_BUSY]" in second.err
        assert f"process {watching.pid} on " in second.err
        assert trio("maintain").code == 0  # by hand, beside it
        watching.send_signal(signal.SIGTERM)  # in its pause of an hour
        assert watching.wait(60) == 0
        assert watching.stderr.read() == b"stopped by SIGTERM\n"
    with replicated.watching(), pytest.raises(StoreBusyError), Store.open(trio.volume).watching():
        pass


def test_maintenance_that_is_asked_to_stop_leaves_the_rest_for_the_next_time(replicated, volumes, blocks_on) -> None:
    missing = blocks_on(volumes[1])[0]
    missing.unlink()
    replicated.maintain(lambda: True)
    assert not missing.exists()
    replicated.maintain()
    assert missing.exists()


def test_lost_metadata_is_rebuilt_as_planned_and_only_when_told_to(trio, replicated, volumes) -> None:
    everywhere = ["--store", ",".join(map(str, volumes))]
    for path in volumes[:2]:
        shutil.rmtree(path / "meta")
    outcome = trio("pub", "orders.new", "x", *everywhere)
    assert outcome.code == 1
    assert "`jstream repair --adopt` rebuilds the metadata" in outcome.err
    before = {path: path.read_bytes() for root in volumes for path in root.rglob("*") if path.is_file()}
    planned = trio("repair", "--adopt", *everywhere)
    assert planned.code == 0
    assert planned.err.endswith("\nnothing was done; --execute does it\n")
    assert "stream ORDERS: 4 messages in 4 blocks, up to sequence 4; 0 lost" in planned.out
    shown = json.loads(trio.done("repair", "--adopt", "--json", *everywhere))
    assert [(one["name"], one["messages"], one["last_seq"]) for one in shown["streams"]] == [("ORDERS", 4, 4)]
    left = {path: path.read_bytes() for path in before}
    assert left == before
    done = trio("repair", "--adopt", "--execute", *everywhere)
    assert done.code == 0
    assert done.err.endswith("\nthe metadata was rebuilt\n")
    assert trio("repair").code == 0
    check_whole(trio)
    assert "adopted" in {event["kind"] for event in json.loads(trio.done("events", "--json"))}
    assert trio.done("pub", "orders.new", "body 5") == "ORDERS 5\n"


def test_metadata_that_has_a_majority_is_not_rebuilt(trio, replicated, volumes) -> None:
    outcome = trio("repair", "--adopt", "--execute", "--store", ",".join(map(str, volumes)))
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    check_whole(trio)


def test_repair_without_a_majority_says_what_is_missing_and_changes_nothing(trio, replicated, volumes) -> None:
    for path in volumes[1:]:
        path.rename(path.with_name(f"{path.name} away"))
    before = {path: path.read_bytes() for path in volumes[0].rglob("*") if path.is_file() and path.name != "lock"}
    outcome = trio("repair")
    assert outcome.code == 1
    assert str(volumes[1]) in outcome.err.splitlines()[-1]
    assert {path: path.read_bytes() for path in before} == before
    for path in volumes[1:]:
        shutil.rmtree(path, ignore_errors=True)
        path.with_name(f"{path.name} away").rename(path)
    Store.open(volumes).close()
    check_whole(trio)


def test_maintain_says_which_volume_it_cannot_bring_back(trio, replicated, volumes) -> None:
    shutil.rmtree(volumes[2])
    outcome = trio("maintain")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.endswith("error: 1 volume could not be brought back: see above\n")
    told = (
        f"is missing: {volumes[2]} does not exist or is not a directory; mount the disk, else `jstream repair` brings"
    )
    assert told in outcome.err
    info = trio("cluster", "info")
    assert "mount the disk; only if it is gone for good, repair rebuilds it; run `jstream repair`" in info.err
    assert trio("repair").code == 0
    assert trio("maintain").err == "maintenance is done\n"
    assert trio("cluster", "info").err == ""


@pytest.mark.parametrize(
    "words",
    [
        ("pub", "orders.new", "x"),
        ("stream", "edit", "ORDERS", "--description", "d"),
        ("stream", "purge", "ORDERS", "--seq", "2", "--force"),
        ("stream", "ls"),
        ("stream", "report"),
        ("consumer", "report"),
        ("events",),
        ("metrics",),
        ("store", "info"),
    ],
    ids=" ".join,
)
def test_whoever_writes_or_reports_hears_of_a_lost_volume(trio, replicated, volumes, words) -> None:
    assert trio(*words).err.count("warning: ") == 0
    name = volumes[2].name
    shutil.rmtree(volumes[2])
    outcome = trio(*words)
    assert outcome.code == 0
    assert outcome.err.count(f"warning: volume {name} is missing: {volumes[2]} does not exist") == 1


def test_a_repair_says_which_volume_it_could_not_bring_back(trio, replicated, volumes) -> None:
    shutil.rmtree(volumes[2])
    volumes[2].write_text("in the way")
    outcome = trio("repair", "--json")
    assert outcome.code == 1
    assert f"warning: volume {volumes[2].name} is missing: {volumes[2]}" in outcome.err
    volumes[2].unlink()
    repaired = trio("repair", "--json")
    assert (repaired.code, repaired.err) == (0, "")


def test_whoever_writes_hears_of_a_damaged_volume(trio, replicated, volumes) -> None:
    identity = volumes[1] / "jstream.volume"
    data = identity.read_bytes()
    identity.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    outcome = trio("pub", "orders.new", "x")
    assert outcome.code == 0 and f"warning: volume {volumes[1].name} is damaged: " in outcome.err


def test_a_directory_in_the_place_of_a_block_is_told_with_what_to_do(trio, replicated, volumes, blocks_on) -> None:
    bad = blocks_on(volumes[1])[0]
    bad.unlink()
    bad.mkdir()
    outcome = trio("repair")
    assert outcome.code == 1
    assert "a directory lies there: move it away and repair again" in outcome.out
    bad.rmdir()
    assert trio("repair").code == 0
    check_whole(trio)
