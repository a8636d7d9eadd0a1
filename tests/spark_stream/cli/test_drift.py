"""`jstream drift`: the copies of our own streams, and those of NATS and STAN clusters, as table, JSON and picture."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

from harness.block_places import flip

DATA = Path(__file__).resolve().parents[2] / "data"
LAGGING = DATA / "nats" / "r3-lagging-follower" / "store"
GONE = DATA / "nats" / "r3-drift-old-messages-gone" / "store"


def nodes(store: Path) -> list[Path]:
    return [store / name for name in ("n1", "n2", "n3")]


# --- our own streams


def test_copies_that_agree_are_said_to_agree(trio, replicated) -> None:
    outcome = trio("drift")
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines()]
    assert rows[0] == "stream copy messages missing damaged different first last content verdict".split()
    assert [(row[1], *row[2:8], row[9]) for row in rows[1:]] == [
        (name, "4", "0", "0", "0", "1", "4", "whole") for name in ("disk-1", "disk-2", "disk-3")
    ]
    assert [row[8] for row in rows[1:]] == ["A", "A", "A"]
    assert outcome.err == "stream ORDERS: the copies agree; together 4 messages\n"


def test_each_volume_is_shown_with_what_is_wrong_there(trio, replicated, volumes, blocks_on) -> None:
    blocks_on(volumes[0])[0].unlink()
    flip(blocks_on(volumes[1])[1], 300)
    shutil.copy(blocks_on(volumes[2])[0], blocks_on(volumes[2])[3])
    before = {path: path.read_bytes() for volume in volumes for path in volume.rglob("*.blk")}
    outcome = trio("drift", "--json")
    assert outcome.code == 1
    (stream,) = json.loads(outcome.out)["streams"]
    assert (stream["agree"], stream["messages"], stream["lost_ranges"]) == (False, 4, [])
    found = {copy["name"]: copy["ranges"] for copy in stream["copies"]}
    assert found == {"disk-1": [[1, 2, "missing"]], "disk-2": [[2, 3, "damaged"]], "disk-3": [[4, 5, "different"]]}
    assert before == {path: path.read_bytes() for volume in volumes for path in volume.rglob("*.blk")}  # as it was


def test_messages_that_no_volume_has_whole_are_named(trio, replicated, volumes, blocks_on) -> None:
    for volume in volumes:
        flip(blocks_on(volume)[2], 300)
    outcome = trio("drift")
    assert outcome.code == 1
    assert "stream ORDERS: no copy has sequence 3 whole\n" in outcome.err
    assert "stream ORDERS: 0 of 3 copies are whole, 1 message lost; together 3 messages\n" in outcome.err


def test_a_volume_that_is_away_lacks_everything_which_is_said_once(trio, replicated, volumes) -> None:
    replicated.add_stream({"name": "OTHER"}).publish("OTHER", b"")
    shutil.rmtree(volumes[2])
    outcome = trio("drift")
    assert outcome.code == 1
    row = re.split("  +", outcome.out.splitlines()[3])
    assert row[:4] == ["ORDERS", "disk-3", "0", "4: 1 to 4"]
    lines = [line for line in outcome.err.splitlines() if "disk-3" in line]
    assert len(lines) == 1 and lines[0].startswith("disk-3: ") and "does not exist" in lines[0]


def test_removed_messages_are_no_drift(jstream, orders) -> None:
    outcome = jstream("drift", "--json")
    (stream,) = json.loads(outcome.out)["streams"]
    assert (outcome.code, stream["agree"], stream["messages"]) == (0, True, 4)
    assert (stream["first_seq"], stream["last_seq"]) == (1, 6)


def test_streams_can_be_chosen_and_unknown_ones_are_refused(trio, replicated) -> None:
    replicated.add_stream({"name": "OTHER"})
    assert [one["stream"] for one in json.loads(trio.done("drift", "--json"))["streams"]] == ["ORDERS", "OTHER"]
    chosen = json.loads(trio.done("drift", "-s", "OTHER", "-s", "OTHER", "--json"))
    assert [one["stream"] for one in chosen["streams"]] == ["OTHER"]
    outcome = trio("drift", "--stream", "ODERS")
    assert (outcome.code, outcome.out) == (1, "")
    assert "ORDERS" in outcome.err


def test_a_store_without_streams_has_no_drift(jstream) -> None:
    outcome = jstream("drift")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no streams\n")


# --- clusters


def test_a_follower_that_lags_is_shown_with_what_it_should_have_removed(jstream) -> None:
    outcome = jstream("drift", "nats", *nodes(LAGGING), with_store=False)
    assert outcome.code == 1
    rows = [re.split("  +", line.strip()) for line in outcome.out.splitlines()[1:]]
    assert [(row[1], *row[2:6], *row[-2:]) for row in rows] == [
        ("n1", "70", "0", "0", "0", "A", "whole"),
        ("n2", "70", "0", "0", "0", "A", "whole"),
        ("n3", "68", "12: 71 to 82", "0", "10: 6, 13, 20, 27, ...", "B", "differs"),
    ]
    assert "stream R3: sequence 6: in n3, removed in n1 and n2; nothing is served (removed)\n" in outcome.err
    assert outcome.err.endswith("stream R3: 2 of 3 copies are whole, nothing lost; together 70 messages\n")


def test_one_directory_above_the_nodes_is_enough(jstream) -> None:
    assert jstream("drift", "nats", GONE).out == jstream("drift", "nats", *nodes(GONE)).out
    assert jstream("drift", "nats", GONE / "n1").code == 0


def test_channels_of_stan_are_compared_too(jstream, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("n1", "n2")]
    for place in places:
        shutil.copytree(DATA / "stan" / "basic" / "store", place)
    assert jstream("drift", "stan", *places).code == 0
    file = max((places[1] / "foo").glob("msgs.*.dat"))
    flip(file, file.stat().st_size // 2)
    outcome = jstream("drift", "stan", *places, "--stream", "foo")
    assert outcome.code == 1
    assert "stream foo: 1 of 2 copies is whole, nothing lost" in outcome.err


def test_what_is_no_store_is_refused_by_name(jstream, tmp_path: Path) -> None:
    for words in (["nats", tmp_path], ["stan", tmp_path], ["nats", LAGGING / "n4"]):
        outcome = jstream("drift", *words)
        assert (outcome.code, outcome.out) == (1, "")
        assert str(words[1]) in outcome.err
    assert jstream("drift", "nats").code == 2
    assert "did you mean 'nats'?" in jstream("drift", "nat", tmp_path).err
    assert "put the options behind the verb" in jstream("drift", "--json", "nats", LAGGING).err


# --- pictures


def test_a_picture_is_written_beside_table_and_json(jstream, tmp_path: Path) -> None:
    html = tmp_path / "drift.HTML"
    outcome = jstream("drift", "nats", GONE, "--picture", html)
    assert outcome.code == 1 and "R3" in outcome.out
    assert f"the picture is in {html}\n" in outcome.err
    page = html.read_text()
    assert "2 of 3 copies are whole, nothing lost" in page
    ElementTree.fromstring(page[page.index("<svg") : page.rindex("</svg>") + 6])
    found = jstream("drift", "nats", GONE, "--json", "--picture", html)
    assert json.loads(found.out)["ok"] is False
    assert html.read_text() == page


def test_a_picture_of_our_own_store_names_its_volumes(trio, replicated, volumes, blocks_on, tmp_path: Path) -> None:
    flip(blocks_on(volumes[1])[1], 300)
    trio("drift", "--picture", tmp_path / "own.html")
    page = (tmp_path / "own.html").read_text()
    assert all(f">{volume.name}</text>" in page for volume in volumes)
    assert "<title>disk-2: 2 damaged</title>" in page


def test_pictures_that_cannot_be_made_are_refused_before_anything_is_read(jstream, tmp_path: Path) -> None:
    outcome = jstream("drift", "nats", LAGGING, "--picture", tmp_path / "drift.png")
    assert (outcome.code, outcome.out) == (2, "")
    assert "it has to end in .html" in outcome.err
    outcome = jstream("drift", "nats", LAGGING, "--picture", tmp_path / "none" / "drift.html")
    assert (outcome.code, outcome.out) == (1, "")
    assert "none is no directory" in outcome.err


def test_an_encrypted_store_is_compared_with_the_key_of_a_file_as_import_takes_it(jstream, tmp_path: Path) -> None:
    source = DATA / "nats" / "encrypted" / "store"
    (tmp_path / "key").write_text("fixture-key-not-secret\n")
    outcome = jstream("drift", "nats", source, "--encryption-key", tmp_path / "key", with_store=False)
    assert outcome.code == 0
    assert "the only copy is whole" in outcome.err
