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


def test_no_volume_is_made_within_a_volume_of_another_store(jstream, tmp_path: Path) -> None:
    other, link, backup = tmp_path / "other", tmp_path / "link", tmp_path / "backup"
    jstream.done("store", "create", other)
    link.symlink_to(jstream.volume)
    jstream.done("backup", backup)
    before = sorted(jstream.volume.rglob("*"))
    for words in (
        ("store", "create", jstream.volume / "inner"),
        ("store", "create", tmp_path / "a", tmp_path / "b", jstream.volume / "new" / "inner"),
        ("store", "create", link / "metadata" / "inner"),
        ("restore", backup, jstream.volume / "inner", "--force"),
        ("cluster", "volume", "add", tmp_path / "c", jstream.volume / "inner", "--store", other),
    ):
        outcome = jstream(*words)
        assert outcome.code == 1, outcome
        assert f"lies within {jstream.volume}, a volume of a store" in outcome.err
        assert sorted(jstream.volume.rglob("*")) == before
        assert not (tmp_path / "a").exists()


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


def test_limits_of_the_whole_store_are_set_shown_and_kept(jstream, store) -> None:
    words = ["--max-streams", 2, "--max-bytes", "1KB", "--stream-default", "LOGS*:max_age=7d", "--open-files-max", 64]
    shown = json.loads(jstream.done("store", "edit", *words, "--json"))["settings"]
    assert (shown["max_streams"], shown["max_bytes"], shown["max_msgs"], shown["open_files_max"]) == (2, 1024, -1, 64)
    jstream.done("store", "edit", "--stream-default", "*:max_bytes=1MB", "--stream-default", "LOGS*:discard=new")
    text = jstream.done("store", "info")
    assert "max bytes: 1.0 KiB" in text and 'streams LOGS*: max_age "7d", discard "new"' in text
    jstream.done("stream", "add", "LOGS")
    config = store.stream("LOGS").config
    assert (config.max_age, config.discard, config.max_bytes) == (7 * 86_400 * 10**9, "new", 1 << 20)
    outcome = jstream("pub", "LOGS", "x" * 2000)
    assert outcome.code == 1 and "[JSTREAM_LIMIT_EXCEEDED] the whole store: max_bytes is 1024;" in outcome.err
    jstream.done("store", "edit", "--no-stream-defaults", "--max-bytes", "-1")
    assert jstream("pub", "LOGS", "x" * 2000).code == 0
    assert "streams" not in jstream.done("store", "info").split("Volumes")[0].replace("streams: 1", "").replace(
        "max streams", ""
    )
    for wrong in (["--max-bytes", "much"], ["--stream-default", "LOGS"], ["--stream-default", "*:colour=red"], []):
        assert jstream("store", "edit", *wrong).code == 2
