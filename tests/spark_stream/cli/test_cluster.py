"""`jstream cluster`, and what other verbs say of a store on several volumes."""

import json
import shutil
from pathlib import Path

import pytest

from spark_stream.look.terminal import show_size


def info_of(trio) -> dict:
    return json.loads(trio.done("cluster", "info", "--json"))


def states_of(trio) -> list[str]:
    return [volume["state"] for volume in info_of(trio)["volumes"]]


def test_a_store_is_made_on_three_volumes_and_found_by_any_of_them(jstream, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    assert jstream("store", "create", *paths, with_store=False).code == 0
    for path in paths:
        info = json.loads(jstream.done("store", "info", "--json", "--store", path))
        assert [volume["path"] for volume in info["volumes"]] == list(map(str, paths))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "b"], "2 were given"),
        (["a", "b", "c", "d"], "4 were given"),
        (["a", "b", "a"], "is given twice"),
        (["a", "b", "link"], "is given twice"),
        (["a,b,./a"], "is given twice"),
        (["a", "b", "b/c"], "lies within"),
        ([], "argument VOLUME is missing"),
        (["a", "", "c"], "names no volume"),
    ],
)
def test_volumes_that_make_no_store_are_wrong_usage(
    jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a")
    outcome = jstream("store", "create", *names, with_store=False)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"link", jstream.volume.name}


def test_a_stream_has_a_copy_on_every_volume_or_as_many_as_were_asked_for(trio) -> None:
    trio.done("stream", "add", "ALL")
    trio.done("stream", "add", "ONE", "--replicas", 1)
    for name, count in (("ALL", 3), ("ONE", 1)):
        info = json.loads(trio.done("stream", "info", name, "--json"))
        assert (info["config"]["num_replicas"], len(info["cluster"]["replicas"])) == (count, count)


@pytest.mark.parametrize("count", [0, 2, 5, 7])
def test_replicas_that_cannot_be_are_wrong_usage(trio, count: int) -> None:
    outcome = trio("stream", "add", "S", "--replicas", count)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"num_replicas: {count}" in outcome.err


def test_the_cluster_is_described_for_people(trio, replicated) -> None:
    lines = trio.done("cluster", "info").splitlines()
    assert lines[0] == f"Store {replicated.id.hex()}"
    assert "can vote now: 3 of 3 volumes" in [line.strip() for line in lines]
    assert [line.split()[1:5] for line in lines[-3:]] == [["current", "voter", "0", "4"]] * 3


def test_sizes_on_disk_are_those_of_the_files(trio, replicated, volumes) -> None:
    trio.done("stream", "purge", "ORDERS", "--force")
    trio.done("pub", "orders.new", "x" * 3000)
    sizes = {path: sorted(file.stat().st_size for file in path.glob("streams/**/*.blk")) for path in map(Path, volumes)}
    replicas = json.loads(trio.done("stream", "info", "ORDERS", "--json"))["cluster"]["replicas"]
    disks = {Path(volume["path"]): volume["disk_bytes"] for volume in info_of(trio)["volumes"]}
    for replica in replicas:
        path = Path(replica["path"])
        assert replica["disk_bytes"] in sizes[path]
        assert disks[path]["live"] == replica["disk_bytes"]
        assert disks[path]["pending_delete"] == sum(sizes[path]) - replica["disk_bytes"] > 0
    shown = trio.done("cluster", "info")
    assert all(show_size(sum(disk.values())) in shown for disk in disks.values())


def test_a_volume_that_is_gone_is_shown_with_the_reason_and_everything_goes_on(trio, replicated, volumes) -> None:
    shutil.rmtree(volumes[2])
    outcome = trio("cluster", "info")
    assert outcome.code == 0
    assert f"is missing: {volumes[2]} does not exist" in outcome.err
    assert "can vote now: 2 of 3 volumes" in [line.strip() for line in outcome.out.splitlines()]
    as_json = trio("cluster", "info", "--json")
    assert (json.loads(as_json.out)["voting"], as_json.err) == (2, outcome.err)
    assert states_of(trio) == ["current", "current", "missing"]
    assert trio.done("pub", "orders.new", "x") == "ORDERS 5\n"
    assert trio.done("stream", "get", "ORDERS", 5, "--raw") == "x\n"


def test_a_report_counts_the_states_of_all_copies(trio, replicated, volumes) -> None:
    replicated.add_stream({"name": "OTHER", "num_replicas": 1})
    shutil.rmtree(volumes[2])
    heading, orders, other = trio.done("stream", "report").splitlines()
    assert heading.split()[0] == "name"
    assert "2 current, 1 missing" in orders
    assert "1 current" in other
    found = json.loads(trio.done("stream", "report", "--json"))
    assert [one["state"] for one in found[0]["cluster"]["replicas"]] == ["current", "current", "missing"]
    assert [one["config"]["name"] for one in found] == ["ORDERS", "OTHER"]


def test_a_report_warns_once_of_a_volume_with_bad_copies_and_names_the_remedy(trio, replicated, volumes) -> None:
    replicated.add_stream({"name": "OTHER"})
    (log,) = (volumes[1] / "meta").glob("*.log")
    data = bytearray(log.read_bytes())
    written = [at for at in range(8192, len(data), 4096) if any(data[at : at + 64])]
    data[written[len(written) // 2] + 20] ^= 0xFF
    log.write_bytes(data)
    for words in ("stream", "report"), ("stream", "report", "--json"):
        (said,) = trio(*words).err.splitlines()
        assert said.startswith("warning: volume disk-2 is damaged: ") and "the metadata log is damaged" in said
        assert said.endswith("; `jstream repair` brings copies and volumes back from good ones")


def test_a_report_without_streams_says_so(trio) -> None:
    assert trio("stream", "report").err == "no streams\n"
    assert trio.done("stream", "report", "--json") == "[]\n"


def test_without_a_majority_reading_goes_on_with_warnings_and_writing_says_what_is_missing(
    trio, replicated, volumes
) -> None:
    for path in volumes[1:]:
        shutil.rmtree(path)
    outcome = trio("stream", "view", "ORDERS", "--raw")
    assert (outcome.code, outcome.out) == (0, "body 1\nbody 2\nbody 3\nbody 4\n")
    warnings = outcome.err.splitlines()  # one of the state, one of each volume
    assert len(warnings) == 3 and all(line.startswith("warning: ") for line in warnings)
    assert [sum(f"{path} does not exist" in line for line in warnings) for path in volumes] == [0, 1, 1]
    assert (info_of(trio)["leader"], info_of(trio)["voting"], info_of(trio)["voters"]) == (None, 1, 3)
    said = trio("cluster", "info").err.splitlines()[-3:]
    assert "bring a volume back; if none can be, `jstream repair --adopt` says what the others can do alone" in said[0]
    assert [line.split(": ")[0] for line in said[1:]] == ["volume disk-2 is missing", "volume disk-3 is missing"]
    outcome = trio("pub", "orders.new", "x")
    assert outcome.code == 1
    assert str(volumes[1]) in outcome.err


def test_removing_asks_and_without_anybody_to_ask_does_nothing(trio, replicated, volumes) -> None:
    outcome = trio("cluster", "volume", "remove", volumes[1], volumes[2])
    assert outcome.code == 2
    assert "--force" in outcome.err
    assert states_of(trio) == ["current"] * 3


@pytest.mark.parametrize("name", ["none", "/nowhere", "", "0"])
def test_a_volume_that_is_none_of_the_store_is_an_error_that_lists_them(trio, replicated, volumes, name: str) -> None:
    outcome = trio("cluster", "volume", "remove", name, "--force")
    assert outcome.code == 1
    assert str(volumes[0]) in outcome.err
