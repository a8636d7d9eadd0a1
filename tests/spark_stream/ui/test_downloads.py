"""Messages as files: the page's filters, whole or named as cut, and never without bounds."""

import io
import json
import os
import re
import socket
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.served_ui import Answer, Browser

from spark_stream.ui import downloads
from storage_core import Store
from storage_core.schema import FILE_SCHEMA


def sequences(answer: Answer) -> list[int]:
    assert answer.code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.body)
    if answer.headers["content-type"].startswith("application/x-ndjson"):
        return [json.loads(line)["seq"] for line in answer.text.splitlines()]
    table = pyarrow.parquet.read_table(io.BytesIO(answer.body))
    assert table.schema.equals(FILE_SCHEMA)
    return table.column("sequence").to_pylist()


def file_name(answer: Answer) -> str:
    return answer.headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_has_what_the_page_shows_with_the_same_filters(
    store: Store, volumes: list[Path], serve, kind: str
) -> None:
    browser: Browser = serve(volumes)
    present = [*range(1, 21), *range(26, 62)]
    time_11 = store.stream("ORDERS").get(11).timestamp_ns
    time = json.loads(browser("/api/streams/ORDERS/messages/11").text)["time"]
    later = [seq for seq in present if store.stream("ORDERS").get(seq).timestamp_ns >= time_11]
    for query, expected in (
        ("", present),
        ("first=19&end=28", [19, 20, 26, 27]),
        ("first=60&end=4000", [60, 61]),
        ("first=40&end=30", []),
        ("subject=orders.us", [seq for seq in present if seq % 2 and seq != 61]),
        ("field=to.n%3D3", [seq for seq in present if seq != 61 and (seq - 1) % 5 == 3]),
        ("field=to.n%3D3&subject=orders.eu&first=30", [34, 44, 54]),
        ("field=name%3DBob", [61]),
        ("header=trace:abc", [61]),
        ("header=trace:abd", []),
        ("header=trace&field=id", [61]),
        (f"time={time}", later),
        (f"time={time}&first=60", [60, 61]),
        ("time=2100-01-01", []),
    ):
        answer = browser(f"/streams/ORDERS/download?format={kind}&{query}")
        assert sequences(answer) == expected, query
        assert re.fullmatch(rf"messages-\d+-\d+\.{kind}", file_name(answer)), query
    assert file_name(browser(f"/streams/ORDERS/download?format={kind}&first=19&end=28")) == f"messages-19-27.{kind}"
    for query in ("format=csv", "subject=a..b", "first=-1", "time=soon"):
        assert browser(f"/streams/ORDERS/download?{query}").code == 400, query
    assert browser("/streams/NO/download").code == 404


def test_the_pages_links_keep_its_filters(store: Store, volumes: list[Path], serve) -> None:
    browser: Browser = serve(volumes)
    for query in ("subject=orders.us&field=to.n%3D0&count=3", "at=40&count=2&header=trace:abc", "at=19&count=3", ""):
        page = browser(f"/streams/ORDERS/messages?{query}").text
        shown = browser(f"/api/streams/ORDERS/messages?{query}").json["rows"]
        links = re.findall(r'href="(/streams/ORDERS/download[^"]*)"', page)
        assert len(links) == 4
        rows = sorted(row["seq"] for row in shown if row["kind"] == "message")
        assert rows
        for link in links[:2]:
            assert sequences(browser(link.replace("&amp;", "&"))) == rows
        for link in links[2:]:
            assert set(rows) <= set(sequences(browser(link.replace("&amp;", "&"))))


def test_a_file_that_reaches_a_bound_says_so_and_how_far_it_goes(
    store: Store, volumes: list[Path], serve, monkeypatch
) -> None:
    browser: Browser = serve(volumes)
    for bound, value, query, expected, name in (
        ("MESSAGE_COUNT_MAX", 15, "first=1", list(range(1, 16)), "messages-1-15-cut.jsonl"),
        ("MESSAGE_COUNT_MAX", 3, "first=1&subject=orders.eu", [2, 4, 6], "messages-1-7-cut.jsonl"),
        ("MESSAGE_COUNT_MAX", 7, "", list(range(55, 62)), "messages-55-61.jsonl"),
        ("SIZE_MAX", 1, "first=1", list(range(1, 11)), "messages-1-10-cut.jsonl"),
        ("SEARCH_ROW_COUNT", 10, "first=11&field=to.n%3D3", [14, 19], "messages-11-25-cut.jsonl"),
        ("MAKING_S", -1.0, "first=1", [], "messages-1-0-cut.jsonl"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(downloads, bound, value)
            answer = browser(f"/streams/ORDERS/download?{query}")
            assert (sequences(answer), file_name(answer)) == (expected, name), (bound, query)


def test_a_file_that_nobody_reads_keeps_its_place_for_a_bounded_time(
    store: Store, volumes: list[Path], serve, monkeypatch
) -> None:
    big = store.add_stream({"name": "BIG", "subjects": ["big"], "compression": "none"})
    big.append([{"subject": "big", "data": os.urandom(1 << 20)} for _ in range(12)])
    browser: Browser = serve(volumes)
    monkeypatch.setattr(downloads, "_unsent", threading.BoundedSemaphore(1))
    monkeypatch.setattr(downloads, "SENDING_S", 2.0)
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", browser.port))
        idle.sendall(b"GET /streams/BIG/download?format=parquet HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        refused = browser("/streams/ORDERS/download?first=61")
        assert refused.code == 429 and "being sent already" in refused.text
        assert downloads._unsent.acquire(timeout=60)
        downloads._unsent.release()
        assert sequences(browser("/streams/ORDERS/download?first=61")) == [61]
        while idle.recv(1 << 20):  # what was on its way, and then the end
            pass


def test_no_more_files_are_made_at_once_than_may_be_and_a_failed_one_gives_its_place_back(
    store: Store, volumes: list[Path], serve, monkeypatch
) -> None:
    browser: Browser = serve(volumes)

    def failing(*arguments: object) -> None:
        raise pa.ArrowInvalid("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_write_lines", failing)
        for _ in range(downloads.AT_ONCE_MAX + 1):
            assert browser("/streams/ORDERS/download").code == 400
    for _ in range(downloads.AT_ONCE_MAX):
        assert downloads._making.acquire(blocking=False)
    try:
        refused = browser("/streams/ORDERS/download")
        assert refused.code == 429
        assert "try again" in refused.text
        assert "ORDERS" in browser.page("/streams/ORDERS/messages")
    finally:
        for _ in range(downloads.AT_ONCE_MAX):
            downloads._making.release()
    assert sequences(browser("/streams/ORDERS/download?first=61")) == [61]
