"""What pages say of stores that are whole, damaged, half gone, gone, and written meanwhile."""

import json
import os
import re
import shutil
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.served_ui import PAGES, TIMEOUT_S, Browser, blocks_of
from typer.testing import CliRunner

from spark_stream import rescue
from spark_stream.cli.app import app
from spark_stream.pipelines.state import PipelineState
from spark_stream.pipelines.summary import Summary
from spark_stream.ui.model import subjects
from spark_stream.ui.model.messages import PARSED_SIZE_MAX
from spark_stream.ui.server import VIEWERS_MAX
from storage_core import Store
from storage_core.store.consumers.query import QueryReader, QueryStart
from storage_core.store.writing.appends import WriterBatch

NODES = Path(__file__).parents[2] / "data" / "nats-orders" / "store"


def tree(volumes: list[Path]) -> dict[str, tuple[int, int]]:
    """Return every file of the volumes with its size and time of change."""
    files = [path for volume in volumes for path in volume.rglob("*")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def spoil(volume: Path, number: int) -> None:
    """Flip a bit in the middle of a volume's n-th block."""
    path = blocks_of(volume)[number]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def test_every_page_of_a_healthy_store_answers_with_its_command_and_its_twin_and_changes_nothing(
    store: Store, volumes: list[Path], serve
) -> None:
    browser, before = serve(volumes[:1]), tree(volumes)
    for path in PAGES:
        page = browser.page(path)
        twin = browser.api("/overview" if path == "/" else path)
        assert twin["command"] in page
        assert str(volumes[0]) in twin["command"]
        assert "Healthy: 3 of 3 volumes current" in page
    overview = browser.api("/overview")
    assert (overview["messages"], overview["streams"], overview["consumers"]) == (56, 1, 2)
    assert overview["worst_lag"]["lag"]["messages"] == 44
    assert overview["health"]["problems"] == []
    assert sum(overview["arrivals"]["counts"]) == pytest.approx(61, abs=0.5)
    assert tree(volumes) == before


def test_messages_are_shown_from_anywhere_with_holes_in_their_places(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    newest = browser.api("/streams/ORDERS/messages", count=10)
    assert [row["seq"] for row in newest["rows"]] == list(range(61, 51, -1))
    assert (newest["older"], newest["newer"]) == (52, None)
    older = browser.api("/streams/ORDERS/messages", count=10, before=newest["older"])
    assert [row["seq"] for row in older["rows"]] == list(range(51, 41, -1))
    assert older["newer"] == 52
    around = browser.api("/streams/ORDERS/messages", count=5, at=19)
    assert [(row["kind"], row["seq"], row.get("end")) for row in around["rows"]] == [
        ("message", 28, None),
        ("message", 27, None),
        ("message", 26, None),
        ("removed", 21, 26),
        ("message", 20, None),
        ("message", 19, None),
    ]
    page = browser.page("/streams/ORDERS/messages", at=19)
    assert "5 removed" in page
    assert browser.api("/streams/ORDERS/messages", at=4000)["note"].startswith("sequence 4000 is not in the stream")
    assert browser.api("/streams/ORDERS/messages", time="1h")["searched"][0] == 1
    assert browser.api("/streams/ORDERS/messages", time="2100-01-01")["note"] == "no message is as new as that"


def test_messages_are_filtered_by_subject_header_and_field(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)

    def found(**query: object) -> list[int]:
        return [
            row["seq"] for row in browser.api("/streams/ORDERS/messages", **query)["rows"] if row["kind"] == "message"
        ]

    assert found(subject="orders.us", count=3) == [59, 57, 55]
    assert found(field="to.n=3", count=3) == [59, 54, 49]
    assert found(field="to.n=3", subject="orders.eu", count=2) == [54, 44]
    assert found(field="name=Bob") == [61]
    assert found(header="trace: abc") == [61]
    assert found(header="Trace: abd") == []
    assert found(field="id=0", at=1) == [1]
    assert found(grep='"n": ?3', count=2) == [59, 54]
    assert browser("/api/streams/ORDERS").code == browser("/streams/ORDERS").code == 307  # to its messages
    refused = browser("/api/streams/ORDERS/messages?subject=a..b")
    assert refused.code == 400
    assert "a..b" in refused.json["message"]
    refused = browser("/api/streams/ORDERS/messages?grep=%28")
    assert refused.code == 400 and "'(' is no regular expression" in refused.json["message"]


def test_large_messages_are_not_parsed_for_a_field_and_said_so(store: Store, volumes: list[Path], serve) -> None:
    """A value of many small lists takes 30 times the memory of its text."""
    stream = store.stream("ORDERS")
    stream.publish("orders.eu", b'{"bomb": [' + b"[]," * (PARSED_SIZE_MAX // 3) + b"[]]}")
    stream.publish("orders.eu", b'{"bomb": [[],[]]}')
    browser = serve(volumes)
    answer = browser.api("/streams/ORDERS/messages", field="bomb")
    assert [row["seq"] for row in answer["rows"] if row["kind"] == "message"] == [63]
    assert answer["unparsed"] == 1
    assert "1 message is larger than 1.0 MiB and not searched" in browser.page("/streams/ORDERS/messages", field="bomb")
    assert browser.api("/streams/ORDERS/messages", field="other")["unparsed"] == 0  # its bytes tell
    assert browser.api("/streams/ORDERS/messages", grep="bomb")["count"] == 2
    download = browser("/streams/ORDERS/download?format=jsonl&field=bomb")
    assert download.headers["content-disposition"].endswith('-63-1-unsearched.jsonl"')
    assert download.body.count(b"\n") == 1


def test_a_consumers_page_names_the_process_that_reads_as_it(store: Store, volumes: list[Path], serve) -> None:
    browser, path = serve(volumes), "/streams/ORDERS/consumers/billing"
    assert browser.api(path)["query"] is None
    reader = QueryReader(store, "billing")
    reader.begin({"ORDERS": QueryStart(1)})
    shutil.rmtree(volumes[0] / "owners")
    assert browser.api(path)["query"].startswith(f"process {os.getpid()} on ")
    assert f"process {os.getpid()} on " in browser.page(path)
    reader.close()


def test_subjects_are_a_tree_of_what_is_shown(store: Store, volumes: list[Path], serve, monkeypatch) -> None:
    stream = store.stream("ORDERS")
    stream.publish("orders.eu.berlin.42", b"deep")
    browser = serve(volumes)
    tree = browser.api("/streams/ORDERS/subjects")["tree"]
    (orders,) = tree["branches"]
    assert (orders["prefix"], orders["messages"], orders["subjects"]) == ("orders", 57, 3)
    counts = {branch["token"]: (branch["messages"], branch["own"]) for branch in orders["branches"]}
    known = stream.subjects()
    assert counts == {"eu": (known["orders.eu"] + 1, known["orders.eu"]), "us": (known["orders.us"],) * 2}
    below = browser.api("/streams/ORDERS/subjects", prefix="orders.eu")
    assert (below["tree"]["messages"], below["tree"]["branches"][0]["prefix"]) == (counts["eu"][0], "orders.eu.berlin")
    assert "messages?subject=orders.eu.berlin.%3E" in browser.page("/streams/ORDERS/subjects")
    assert browser.api("/streams/ORDERS/subjects", before=11)["tree"]["messages"] == 10
    monkeypatch.setattr(subjects, "COUNTING_S", -1.0)
    cut = browser.api("/streams/ORDERS/subjects")
    assert (cut["tree"]["messages"], cut["is_all"], cut["older"]) == (1, False, 62)
    assert browser("/streams/ORDERS/subjects?prefix=orders.*").code == 400


def test_a_message_is_shown_as_what_it_is_or_as_was_asked(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    page = browser.page("/streams/ORDERS/messages/61")
    assert "&#34;name&#34;: &#34;Bob&#34;" in page
    assert "Trace" in page
    assert "82 a2 69 64" in browser.page("/streams/ORDERS/messages/61", **{"as": "hex"})
    assert "not shown as json" in browser.page("/streams/ORDERS/messages/61", **{"as": "json"})
    assert browser.api("/streams/ORDERS/messages/61")["headers"] == [["Trace", "abc"]]
    raw = browser("/streams/ORDERS/messages/61/raw")
    assert raw.body == b"\x82\xa2id\x07\xa4name\xa3Bob"
    assert raw.headers["content-disposition"].startswith("attachment")
    assert browser("/streams/ORDERS/messages/22").code == 404


def test_a_message_names_its_writer_and_a_stream_its_duplicates(store: Store, volumes: list[Path], serve) -> None:
    stored = store.stream("ORDERS").append([{"subject": "orders.eu", "data": b"1"}], WriterBatch("loader", "2026-11"))
    browser = serve(volumes)
    text = browser.page(f"/streams/ORDERS/messages/{stored[0]}")
    assert "writer loader, batch 2026-11" in text
    assert "Stored by" not in browser.page("/streams/ORDERS/messages/1")
    for _ in range(3):
        store.stream("ORDERS").publish("orders.eu", b"2", msg_id="once")
    assert "2 duplicates dropped" in browser.page("/streams/ORDERS/messages")


def test_a_lost_and_a_damaged_volume_are_told_with_the_command_and_every_message_is_still_shown(
    store: Store, volumes: list[Path], serve
) -> None:
    browser = serve(volumes)
    shutil.rmtree(volumes[1])
    spoil(volumes[2], 2)
    shown = browser.api("/streams/ORDERS/messages", count=200)
    assert sum(row["kind"] == "message" for row in shown["rows"]) == 56
    overview = browser.api("/overview")
    assert overview["health"]["state"] == "warning"
    problems = {one["what"]: one["command"] for one in overview["health"]["problems"]}
    assert f"jstream repair --store {','.join(map(str, volumes))}" == problems["volume disk-2 is missing"]
    page = browser.page("/")
    assert "volume disk-2 is missing" in page
    assert "Needs attention: " in page
    store.scrub()
    copies = browser.api("/streams/ORDERS/copies")
    states = {one["label"]: [tile["state"] for tile in one["tiles"]] for one in copies["volumes"]}
    assert states["disk-1"] == ["current"] * 7
    assert states["disk-2"] == ["missing"] * 7
    assert states["disk-3"] == ["current"] * 2 + ["damaged"] + ["current"] * 4
    (bad,) = next(one["bad"] for one in copies["volumes"] if one["label"] == "disk-3")
    assert (bad["state"], bad["first"], bad["end"]) == ("damaged", 21, 31)
    zoomed = browser.api("/streams/ORDERS/copies", first=21, end=31)
    assert [one["states"] for one in zoomed["blocks"]] == [
        [{"disk-1": "current", "disk-2": "missing", "disk-3": "damaged"}[one["label"]] for one in zoomed["volumes"]]
    ]
    volume = next(one["name"] for one in copies["volumes"] if one["label"] == "disk-3")
    block = browser.api(f"/streams/ORDERS/blocks/{bad['block']}", volume=volume)
    assert len(block["read"]["damage"]) >= 1
    assert "00000000  " in browser.page(f"/streams/ORDERS/blocks/{bad['block']}", volume=volume)
    gone = next(one["name"] for one in copies["volumes"] if one["label"] == "disk-2")
    assert "No such file" in browser.page(f"/streams/ORDERS/blocks/{bad['block']}", volume=gone)
    store.repair()
    assert browser.api("/overview")["health"]["state"] == "ok"


def test_pages_and_check_find_the_same_problems(store: Store, volumes: list[Path], serve) -> None:
    shutil.rmtree(volumes[1])
    spoil(volumes[2], 2)
    store.scrub()
    browser = serve(volumes)
    health = browser.api("/overview")["health"]
    checked = json.loads(CliRunner().invoke(app, ["check", "--json", "--store", ",".join(map(str, volumes))]).stdout)
    assert [one["command"].split(" --store ")[0] for one in health["problems"]] == [
        one["command"] for one in checked["problems"]
    ]
    assert health["state"] == checked["level"] == "warning"
    assert [one["subject"] for one in checked["problems"]][:2] == ["volume disk-2", "volume disk-3"]


def test_what_no_copy_has_stands_in_its_place(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    for volume in volumes:
        spoil(volume, 2)
    store.scrub()
    marks = browser.api("/streams/ORDERS/copies")["marks"]
    assert [mark["unreadable"] for mark in marks] == [0, 0, 5, 0, 0, 0, 0]
    assert [mark["state"] for mark in marks] == ["served", "served", "lost", *["served"] * 4]
    assert "5 on no whole copy" in browser.page("/streams/ORDERS/copies")
    rows = browser.api("/streams/ORDERS/messages", count=200)["rows"]
    (unreadable,) = [row for row in rows if row["kind"] == "unreadable"]
    assert unreadable["file"].endswith(".blk")
    assert (unreadable["seq"], unreadable["end"]) == (21, 31)
    store.repair()
    rows = browser.api("/streams/ORDERS/messages", at=20)["rows"]
    assert ("lost", 26, 31) in [(row["kind"], row["seq"], row.get("end")) for row in rows]
    assert any("lost for good" in one["what"] for one in browser.api("/overview")["health"]["problems"])
    assert "no volume has them any more" in browser.page("/streams/ORDERS/messages", at=20)


def test_pages_follow_a_store_that_is_written(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    assert browser.api("/overview")["messages"] == 56
    store.stream("ORDERS").publish("orders.eu", b"one more")
    assert browser.api("/overview")["messages"] == 57
    assert browser.api("/streams/ORDERS/messages")["rows"][0]["preview"] == "one more"
    assert browser("/streams/ORDERS/consumers/billin").code == 404
    assert "did you mean" in browser("/api/streams/ORDERS/consumers/billin").json["message"]


def test_a_store_that_goes_away_is_an_error_until_it_is_back_and_another_one_in_its_place_is_shown(
    store: Store, volumes: list[Path], serve, tmp_path: Path
) -> None:
    browser = serve(volumes)
    browser.page("/")
    for volume in volumes:
        volume.rename(volume.with_suffix(".away"))
    for path in PAGES:
        assert browser(path).code == 503, path
        assert browser("/api/overview" if path == "/" else f"/api{path}").code == 503, path
        assert browser(f"/api{path}").code == 503, path
    assert "cannot be read" in browser("/").text
    for volume in volumes:
        volume.with_suffix(".away").rename(volume)
    assert browser.api("/overview")["messages"] == 56
    for volume in volumes:
        shutil.rmtree(volume)
    with Store.create([str(one) for one in volumes]) as other:
        other.add_stream({"name": "OTHER"})
        assert [one["name"] for one in browser.api("/streams")["streams"]] == ["OTHER"]


def test_pages_need_no_lock(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    with store.session():
        for path in PAGES:
            browser.page(path)


def test_viewers_are_told_when_something_changed(store: Store, volumes: list[Path], serve) -> None:
    browser: Browser = serve(volumes)
    number = browser.site.scan().number
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=30)
    connection.request("GET", "/live")
    stream = connection.getresponse()

    def heard() -> int:
        while True:
            line = stream.readline().decode()
            if line.startswith("data: "):
                return int(line.split()[1])

    assert heard() == number
    store.stream("ORDERS").publish("orders.eu", b"one more")
    while heard() == number:  # a scan that ends while its number is sent announces the number again
        pass
    connection.close()


def test_a_burst_of_viewers_gets_as_many_places_as_there_are(store: Store, volumes: list[Path], serve) -> None:
    browser: Browser = serve(volumes)
    with ExitStack() as stack:
        viewers = [stack.enter_context(socket.create_connection(("127.0.0.1", browser.port))) for _ in range(230)]
        for viewer in viewers:
            viewer.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        codes = Counter(viewer.makefile("rb").readline().split()[1] for viewer in viewers)
    assert codes == {b"200": VIEWERS_MAX, b"503": 30}
    with socket.create_connection(("127.0.0.1", browser.port)) as viewer:  # those who left gave their places back
        viewer.sendall(b"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert viewer.makefile("rb").readline().split()[1] == b"200"


def test_pipelines_are_shown_with_their_runs_and_dead_letters(
    store: Store, volumes: list[Path], serve, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        """
checkpoint = "state/orders"
[source]
stream = "ORDERS"
[payload]
format = "json"
schema = "id INT"
[sink]
kind = "parquet"
path = "out"
[dead_letters]
stream = "DEAD"
"""
    )
    dead = store.add_stream({"name": "DEAD", "subjects": ["dead"]})
    for sequence, reason in ((3, "id: ten is not INT"), (4, "id: 1.5 is not INT"), (9, "<b>not JSON</b>")):
        told = {"Reason": reason, "Stream": "ORDERS", "Sequence": str(sequence), "Pipeline": "orders"}
        dead.publish("dead", b"x", headers=[(f"Jstream-{key}", value.encode()) for key, value in told.items()])
    dead.publish("dead", b"x", headers=[("Jstream-Reason", b"other"), ("Jstream-Pipeline", b"another")])
    state = PipelineState(str(tmp_path / "state/orders"))
    for rows_in in (5, 7):
        summary = Summary("orders", "available-now", rows_in=rows_in, rows_out=rows_in - 1, rows_dead=1)
        summary.finish(ok=rows_in == 7, error="" if rows_in == 7 else "the sink is full")
        state.add_run(summary.to_json())
    browser, before = serve(volumes, pipelines=[file, tmp_path / "gone.toml"]), tree(volumes)
    overview = browser.api("/overview")
    assert overview["pipelines"] == {"count": 2, "running": 0, "failed": 1, "waiting": 56}
    assert overview["health"]["sentence"].startswith("Needs attention: pipeline gone cannot be read")
    assert "1 failed" in browser.page("/")
    short, gone = browser.api("/pipelines")["pipelines"]
    assert (short["pipeline"], short["last_run"]["rows_in"], short["lag"]) == ("orders", 7, 56)
    assert "gone.toml" in gone["error"]
    assert "gone.toml" in browser.page("/pipelines")
    whole = browser.api("/pipelines/0")
    assert [(run["rows_in"], run["ok"]) for run in whole["runs"]] == [(7, True), (5, False)]
    assert [(kind["kind"], kind["letters"]) for kind in whole["dead_letters"]["kinds"]] == [
        ("id: is not INT", 2),
        ("<b>not JSON</b>", 1),
    ]
    page = browser.page("/pipelines/0")
    for link in ("/streams/DEAD/messages/2", "/streams/ORDERS/messages/4"):
        assert f'href="{link}"' in page
        assert browser(link).code == 200
    assert "the sink is full" in page
    assert "<b>not" not in page
    assert browser("/pipelines/2").code == 404
    assert "--pipeline" in serve(volumes).page("/pipelines")
    assert tree(volumes) == before


def test_directories_of_broken_nodes_are_scanned_compared_and_downloaded(
    store: Store, volumes: list[Path], serve, tmp_path: Path
) -> None:
    nodes = [tmp_path / name for name in ("n1", "n2", "n3")]
    for node in nodes:
        shutil.copytree(NODES / node.name, node)
    before = tree(nodes)
    browser = serve(volumes, rescues=nodes)
    shown = browser.api("/rescue")
    assert (shown["state"], shown["streams"]) == ("not begun", [])
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', browser.page("/rescue"))
    assert csrf is not None
    assert browser.form("/rescue/scan", {}).code == 403
    assert browser.form("/rescue/scan", {"csrf": csrf[1]}, Origin=browser.address).headers["location"] == "/rescue"
    until = time.monotonic() + TIMEOUT_S
    while (shown := browser.api("/rescue"))["state"] == "running":
        browser.page("/rescue")
        assert time.monotonic() < until
    assert shown["state"] == "done", shown
    expected = {name: rescue.compare(rescue.open(nodes), name) for name in rescue.open(nodes).streams()}
    assert {stream["name"]: stream["verdict"] for stream in shown["streams"]} == {
        name: drift.verdict() for name, drift in expected.items()
    }
    name = shown["streams"][0]["name"]
    page = browser.page(f"/rescue/streams/{name}")
    assert "<svg" in page
    assert browser.api(f"/rescue/streams/{name}")["comparison"] == json.loads(json.dumps(expected[name].to_json()))
    as_json = browser("/rescue/download?as=json")
    assert as_json.headers["content-disposition"] == 'attachment; filename="comparison.json"'
    assert {stream["stream"] for stream in as_json.json["streams"]} == set(expected)
    assert browser(f"/rescue/download?as=html&stream={name}").headers["content-disposition"].startswith("attachment")
    assert browser("/rescue/streams/NO").code == 404
    assert tree(nodes) == before
    assert "--rescue" in serve(volumes).page("/rescue")


def bytes_read() -> int:
    """Return how many bytes this process has read so far, from files and sockets."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not count what a process reads")
def test_a_page_of_messages_reads_no_more_than_the_frames_of_what_it_shows(
    store: Store, volumes: list[Path], serve
) -> None:
    stream, size = store.add_stream({"name": "LARGE", "subjects": ["large"], "compression": "none"}), 64 << 20
    stream.append([{"subject": "large", "data": os.urandom(8192)} for _ in range(size // 8192)])
    browser: Browser = serve(volumes)
    for query in ({}, {"at": 1}, {"at": 4000}, {"before": 6000}):
        browser.page("/streams/LARGE/messages", count=10, **query)
        before = bytes_read()
        browser.page("/streams/LARGE/messages", count=10, **query)
        assert bytes_read() - before < size / 4, query


def test_a_configuration_names_streams_that_take_the_same_subjects(store: Store, volumes: list[Path], serve) -> None:
    store.add_stream({"name": "ALL", "subjects": ["orders.*", "x"]}, allow_overlap=True)
    browser = serve(volumes)
    assert browser.api("/streams/ALL/configuration")["overlaps"] == [
        {"subjects": ["orders.*"], "other": "ORDERS", "other_subjects": ["orders.>"]}
    ]
    page = browser.page("/streams/ORDERS/configuration")
    assert 'orders.&gt; overlaps with orders.* of stream <a href="/streams/ALL">' in page
