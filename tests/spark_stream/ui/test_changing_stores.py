"""What happens to a store under open pages: written, repaired, half gone, gone, replaced; and who else looks at it."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.served_ui import PAGES, Browser, appending, blocks_of, form_on, replace_with_another_store

from storage_core import Store

Happening = Callable[[Store, list[Path]], None]


def twin(path: str) -> str:
    return "/api/overview" if path == "/" else f"/api{path}"


def lose(count: int) -> Happening:
    def happens(store: Store, volumes: list[Path]) -> None:
        for volume in volumes[:count]:
            shutil.rmtree(volume)

    return happens


def lose_metadata(store: Store, volumes: list[Path]) -> None:
    for volume in volumes[:2]:
        shutil.rmtree(volume / "meta")


def lose_blocks(store: Store, volumes: list[Path]) -> None:
    for volume in volumes:
        blocks_of(volume)[2].unlink()


def swap_a_volume(store: Store, volumes: list[Path]) -> None:
    replace_with_another_store(volumes[1])


@pytest.mark.parametrize(
    ("happens", "code", "state", "words"),
    [
        (lose(1), 200, "warning", "Needs attention: volume disk-1 is missing"),
        (lose(2), 200, "critical", "Critical: store cannot be written: 1 of 3 volumes can vote"),
        (lose_metadata, 200, "critical", "Critical: store cannot be written: 1 of 3 volumes can vote"),
        (lose_blocks, 200, "critical", "Critical: stream ORDERS has 5 messages (26 to 30) on no volume at hand"),
        (swap_a_volume, 200, "warning", "Needs attention: volume disk-2 is foreign"),
        (lose(3), 503, "", "The store cannot be read"),
    ],
    ids=["a volume gone", "two gone", "metadata gone", "a block gone everywhere", "a foreign volume", "all gone"],
)
def test_every_page_says_what_is_left_of_a_store_that_was_whole_when_it_was_opened(
    store: Store, volumes: list[Path], serve, happens: Happening, code: int, state: str, words: str
) -> None:
    browser: Browser = serve(volumes)
    browser.page("/")
    happens(store, volumes)
    for path in PAGES:
        answer = browser(path)
        assert (answer.code, browser(twin(path)).code) == (code, code), path
        assert words in answer.text, path
    if code == 200:
        health = browser.api("/overview")["health"]
        assert health["state"] == state
        assert all(problem["command"] for problem in health["problems"])
        assert not any("adopt" in problem["change"] for problem in health["problems"])


@pytest.mark.parametrize("work", ["append", "repair", "scrub", "maintain"])
def test_every_page_answers_while_the_store_is_written_and_repaired(
    store: Store, volumes: list[Path], serve, work: str
) -> None:
    browser: Browser = serve(volumes)
    shutil.rmtree(volumes[1])
    damaged = blocks_of(volumes[2])[2]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    done: list[object] = []

    def working() -> None:
        done.append({"repair": store.repair, "scrub": store.scrub, "maintain": store.maintain}[work]())

    with appending(store):
        worker = threading.Thread(target=working if work != "append" else lambda: done.append(None))
        worker.start()
        for path in PAGES:
            browser.page(path)
            browser.api(twin(path).removeprefix("/api"))
        worker.join(60)
    assert done
    if work == "repair":
        assert browser.api("/overview")["health"]["state"] == "ok"


def test_a_stream_that_is_deleted_under_a_page_is_named_and_one_of_its_name_is_another(
    store: Store, volumes: list[Path], serve
) -> None:
    browser: Browser = serve(volumes, allows_changes=True)
    old = store.add_stream({"name": "NEW", "subjects": ["new"]})
    old.publish("new", b"old")
    old.add_consumer({"name": "reader"})
    block = bytes(store.stream_state("NEW").blocks.rows["block_id"][0]).hex()
    pages = ["messages", "messages/1", "subjects", "copies", f"blocks/{block}", "configuration", "consumers/reader"]
    for path in pages:
        assert "NEW" in browser.page(f"/streams/NEW/{path}")
    form = form_on(browser, "purge", stream="NEW")
    store.delete_stream("NEW")
    for path in (*pages, "download", "messages/1/raw"):
        gone = browser(f"/streams/NEW/{path}")
        assert (gone.code, "NEW" in gone.text) == (404, True), path
    assert browser.form("/change/purge", {**form, "typed": "NEW"}).code == 404
    new = store.add_stream({"name": "NEW", "subjects": ["new"]})
    new.publish("new", b"new")
    assert browser.form("/change/purge", {**form, "typed": "NEW"}).code == 410
    assert [row["preview"] for row in browser.api("/streams/NEW/messages")["rows"]] == ["new"]
    assert browser(f"/streams/NEW/blocks/{block}").code == 404


def test_two_servers_show_one_store_and_neither_takes_the_others_forms(
    store: Store, volumes: list[Path], serve
) -> None:
    one, other = serve(volumes, allows_changes=True), serve(volumes[:1], allows_changes=True)
    for path in PAGES:
        assert one.page(path).count("Healthy: 3 of 3 volumes current") == 1
        other.page(path)
    form = form_on(one, "purge", stream="ORDERS", subject="orders.us") | {"typed": "ORDERS"}
    assert other.form("/change/purge", form, Origin=other.address).code == 403
    assert one.form("/change/purge", form, Origin=other.address).code == 403
    assert one.form("/change/purge", form, Origin=one.address).code == 303
    until = time.monotonic() + 60
    while one.api("/changes/1")["state"] == "running":
        assert time.monotonic() < until
    left = one.api("/overview")["messages"]
    assert 0 < left < 56
    assert other.api("/overview")["messages"] == left
    assert other.api("/changes")["changes"] == []
    assert "purge" in other.page("/events", kind="asked")
