"""`jstream store`."""

import json
from pathlib import Path


def test_a_store_is_made_and_described(jstream, tmp_path: Path) -> None:
    volume = tmp_path / "a new one"
    outcome = jstream("store", "create", volume, "--deleted-block-retention", "1h", with_store=False)
    assert (outcome.code, outcome.err) == (0, "created the store\n")
    assert str(volume) in outcome.out
    info = json.loads(jstream.done("store", "info", "--json", "--store", volume))
    assert info["settings"]["deleted_block_retention"] == 3_600_000_000_000
    assert info["volumes"][0]["path"] == str(volume)


def test_a_directory_that_holds_something_is_not_made_a_store(jstream, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    outcome = jstream("store", "create", tmp_path / "mine", with_store=False)
    assert outcome.code == 1
    assert str(tmp_path / "mine") in outcome.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_a_store_is_not_made_twice(jstream) -> None:
    outcome = jstream("store", "create", jstream.volume)
    assert outcome.code == 1
    assert jstream("store", "info").code == 0


def test_a_setting_out_of_bounds_is_wrong_usage(jstream, tmp_path: Path) -> None:
    outcome = jstream("store", "create", tmp_path / "new", "--snapshot-every", 0, with_store=False)
    assert outcome.code == 2
    assert "snapshot_every" in outcome.err
    assert not (tmp_path / "new").exists()


def test_info_for_people_names_what_is_in_it(jstream, orders) -> None:
    out = jstream.done("store", "info")
    assert f"Store {orders.id.hex()}" in out
    assert "messages: 4" in out
    assert str(jstream.volume) in out
