"""Pages in a real browser: nothing is blocked, nothing is loaded from elsewhere, all of it fits, can be read and used.

axe-core, which looks for what keeps people from using a page, comes with axe-playwright-python.
"""

import importlib.resources
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from harness.hostile import make_hostile
from harness.served_ui import PAGES, Browser, appending, blocks_of, make_orders, replace_with_another_store

from spark_stream import rescue
from spark_stream.ui.model import messages
from storage_core import Store

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="the package axe-playwright-python is not installed")
AXE = str(importlib.resources.files(axe) / "axe.min.js")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
NODES = [Path(__file__).parents[2] / "data" / "nats-orders" / "store" / name for name in ("n1", "n2", "n3")]
WAIT_MS = 60_000  # the longest that anything is waited for
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=WAIT_MS)
        yield browser
        browser.close()


class Window:
    """One page in the browser; keeps what it complained of, and whom it asked."""

    def __init__(
        self, chromium: Any, server: Browser, width: int = 1280, scheme: str = "light", **options: Any
    ) -> None:
        self.address = server.address
        self._server = server
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(WAIT_MS)
        self.page = context.new_page()
        self.page.add_init_script(path=AXE)
        self._complaints: list[str] = []
        self._asked: set[str] = set()
        self.page.on("console", lambda message: self._complaints.append(message.text))
        self.page.on("pageerror", lambda error: self._complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self._complaints.append(dialog.message))
        self.page.on("request", lambda request: self._asked.add(request.url))

    def look(self, path: str) -> None:
        """Load a page, which has to fit, and to be usable by everybody."""
        self.page.goto(self._server.address + path, wait_until="load")
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        # Scripts of a debugger come past the page's policy.
        violations = self.page.evaluate("async () => (await axe.run()).violations")
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations] == [], path

    def close(self) -> None:
        """Nothing was blocked or failed, nothing was asked of another host."""
        assert [text for text in self._complaints if "the server responded with a status of" not in text] == []
        assert {url.split("/")[2] for url in self._asked} == {f"127.0.0.1:{self._server.port}"}
        self.page.context.close()


def broken(volumes: list[Path]) -> None:
    """Lose a volume, and damage a block of another one."""
    shutil.rmtree(volumes[1])
    damaged = blocks_of(volumes[2])[2]
    damaged.write_bytes(damaged.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("state", "width", "scheme"),
    [("whole", 1280, "light"), ("whole", 420, "dark"), ("broken", 420, "light"), ("foreign", 1280, "dark")],
)
def test_every_page_is_whole_and_usable(
    volumes: list[Path], serve, chromium, state: str, width: int, scheme: str
) -> None:
    """Broken: beside an append. Foreign: imported from another server, with a volume of yet another store."""
    with Store.create([str(volume) for volume in volumes]) as store:
        if state == "foreign":
            rescue.import_streams(store, rescue.open(NODES))
        else:
            make_orders(store)
        last = store.stream("ORDERS").state().next_sequence - 1
        block = bytes(store.stream_state("ORDERS").blocks.rows["block_id"][0]).hex()
        if state == "broken":
            broken(volumes)
        elif state == "foreign":
            replace_with_another_store(volumes[1])
        window = Window(chromium, serve(volumes, rescues=NODES), width, scheme)
        others = ["/pipelines", f"/streams/ORDERS/messages/{last}", "/rescue", "/nothing"]
        others += [f"/streams/ORDERS/blocks/{block}?volume={store.cluster_info()['volumes'][-1]['name']}"]
        with appending(store) if state == "broken" else nullcontext():
            for path in [*PAGES, *others]:
                window.look(path)
        window.page.locator("#hex").wait_for()
        if state == "whole":
            window.look("/rescue")
            window.page.get_by_role("button", name="Scan").click()
            window.page.get_by_role("link", name="ORDERS").wait_for()
            for path in ("/rescue", "/rescue/streams/ORDERS"):
                window.look(path)
        else:
            window.page.goto(window.address + "/")
            assert f"volume disk-2 is {'missing' if state == 'broken' else 'foreign'}" in window.page.content()
        window.look("/streams/ORDERS/messages")
        width_of_data = "document.querySelector('td.preview').getBoundingClientRect().width"  # rows are renewed
        assert window.page.evaluate(width_of_data) > 200  # the data is seen on a phone, too
        window.close()


def test_a_broken_store_that_is_written_is_shown_live_with_what_is_wrong(
    store: Store, volumes: list[Path], serve, chromium
) -> None:
    broken(volumes)
    window = Window(chromium, serve(volumes))
    window.look("/streams/ORDERS/copies")
    assert window.page.locator(".tile.missing").count() == 7
    assert window.page.locator(".tile.damaged").count() == 1
    window.page.locator(".tile.damaged").click()
    window.page.get_by_role("link", name="Read and check").last.click()
    window.page.locator("#hex").wait_for()
    window.look("/streams/ORDERS/messages")
    stream = store.stream("ORDERS")
    for number in range(3):
        stream.publish("orders.eu", b"<img src=x onerror=alert(1)> number %d" % number)
        window.page.get_by_text(f"number {number}").wait_for()
    store.add_stream({"name": "NEW", "subjects": ["new"]})
    window.look("/streams/NEW/messages")
    store.delete_stream("NEW")
    window.page.get_by_role("heading", name="Not found").wait_for()
    window.look("/streams/ORDERS/messages")
    for volume in volumes[::2]:
        volume.rename(volume.with_suffix(".away"))
    window.page.get_by_role("heading", name="The store cannot be read").wait_for()
    for volume in volumes[::2]:
        volume.with_suffix(".away").rename(volume)
    window.page.get_by_text("number 2").wait_for()
    window.close()


def test_nothing_that_a_store_holds_is_executed(volumes: list[Path], serve, chromium) -> None:
    """`alert` would open a dialog, which counts as a complaint; so does whatever the policy has to block."""
    with Store.create([str(volume) for volume in volumes]) as store:
        count = len(make_hostile(store))
        window = Window(chromium, serve(volumes))
        window.look("/streams/HOSTILE/messages?at=60&count=30")
        tabs = ["messages?count=200", "subjects", "configuration", "consumers/reader", "messages/1", "messages/14"]
        for path in tabs:
            window.page.goto(f"{window.address}/streams/HOSTILE/{path}", wait_until="load")
            if path == tabs[0]:
                assert window.page.locator("td.preview").count() == count
        window.close()


def test_several_stores_are_looked_at_side_by_side(store: Store, volumes: list[Path], serve, chromium) -> None:
    window = Window(chromium, serve(volumes, others={"again": volumes}), 420)
    for path in ("/stores", "/", "/@again/streams/ORDERS/messages"):
        window.look(path)
    window.page.locator(".live.is-live").wait_for()
    window.page.keyboard.press("g")
    window.page.keyboard.press("s")
    window.page.wait_for_url("**/@again/streams")
    store.add_stream({"name": "LATER", "subjects": ["later"]})
    window.page.get_by_role("link", name="LATER").wait_for()
    window.page.get_by_role("link", name="@again").click()
    window.page.wait_for_url("**/stores")
    window.page.get_by_role("link", name="default", exact=True).last.click()
    window.page.wait_for_url(f"{window.address}/")
    window.close()


def test_dead_letters_of_a_long_kind_fit_a_phone(
    store: Store, volumes: list[Path], serve, chromium, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        """
checkpoint = "state"
[source]
stream = "ORDERS"
[sink]
kind = "jstream"
stream = "OUT"
[dead_letters]
stream = "DEAD"
"""
    )
    long = f"{'items' * 20}: {'x' * 60} is not array<struct<sku:string,name:string,quantity:int,unit_price:double>>"
    added = {"Reason": long, "Stream": "ORDERS", "Sequence": "7", "Pipeline": "orders"}
    dead = store.add_stream({"name": "DEAD"})
    dead.publish("DEAD", b"x", headers=[(f"Jstream-{key}", value.encode()) for key, value in added.items()])
    window = Window(chromium, serve(volumes, allows_changes=True, pipelines=[file]), 420, "dark")
    window.look("/pipelines/0")
    kind = "document.querySelector('th.breaks')"
    assert window.page.evaluate(f"{kind}.scrollWidth <= {kind}.clientWidth && {kind}.clientWidth < innerWidth")
    window.page.get_by_role("link", name="Replay").click()
    window.page.get_by_role("button", name="Plan a replay").wait_for()
    for path in ("/change/replay-plan?pipeline=0", "/change/replay?pipeline=0"):
        window.look(path)
    window.close()


def test_a_change_is_planned_asked_for_and_watched(store: Store, volumes: list[Path], serve, chromium) -> None:
    window = Window(chromium, serve(volumes, allows_changes=True), 420)
    of_a_stream = [f"/change/{kind}?stream=ORDERS" for kind in ("publish", "stream-edit", "repair")]
    for path in (
        *of_a_stream,
        "/change/stream-add",
        "/change/consumer-pause?stream=ORDERS&consumer=billing",
        "/changes",
    ):
        window.look(path)
    window.look("/streams/ORDERS/configuration")
    window.page.get_by_role("link", name="Purge").click()
    window.page.get_by_label("Subject").fill("orders.us")
    window.page.get_by_role("button", name="Show the plan").click()
    window.page.wait_for_url(lambda url: "subject=orders.us" in url)
    going = store.stream("ORDERS").subjects()["orders.us"]
    window.page.get_by_label("Type ORDERS").fill("orders")
    window.page.get_by_role("button", name="Purge messages").click()
    window.page.get_by_text("nothing was done").wait_for()
    assert store.stream("ORDERS").subjects()["orders.us"] == going
    window.page.go_back()
    window.page.get_by_label("Type ORDERS").fill("ORDERS")
    window.page.get_by_role("button", name="Purge messages").click()
    window.page.wait_for_url("**/changes/1")
    window.page.get_by_text(f"Removed {going} messages").wait_for()
    window.look("/changes/1")
    assert "orders.us" not in store.stream("ORDERS").subjects()
    window.close()


def test_keys_lead_about_and_pages_need_no_script(store: Store, volumes: list[Path], serve, chromium) -> None:
    server = serve(volumes)
    window = Window(chromium, server)
    window.look("/")
    window.page.keyboard.press("g")
    window.page.keyboard.press("s")
    window.page.wait_for_url("**/streams")
    window.page.keyboard.press("/")
    window.page.keyboard.type("order")
    window.page.keyboard.press("Enter")
    window.page.wait_for_url("**/streams?search=order")
    window.close()
    plain = chromium.new_context(java_script_enabled=False).new_page()
    plain.goto(f"{server.address}/streams/ORDERS/messages")
    plain.get_by_role("link", name="Older").first.click()
    plain.get_by_role("link", name="5", exact=True).click()
    assert "Message 5" in plain.content()
    plain.context.close()
    window = Window(chromium, serve(volumes, token="a token of 24 characters"))
    window.look("/")
    window.page.get_by_label("Token").fill("a token of 24 characters")
    window.page.keyboard.press("Enter")
    window.page.get_by_text("Newest events").wait_for()
    window.close()


def test_a_search_goes_on_until_it_finds_or_is_stopped(
    store: Store, volumes: list[Path], serve, chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SEARCH_ROW_COUNT", 0)  # a page searches one part
    monkeypatch.setattr(messages, "PART_ROW_COUNT", 5)
    window = Window(chromium, serve(volumes))
    for query, found in (("grep=%22id%22: 2,", "3"), ("header=trace&at=1", "61")):
        window.page.goto(f"{window.address}/streams/ORDERS/messages?{query}")
        assert window.page.locator("table.messages tbody td.number a").inner_text() == found
    window.page.goto(f"{window.address}/streams/ORDERS/messages?grep=nothing_such&stop=1")
    assert window.page.locator(".note").inner_text().startswith("Stopped: no match in ")
    before = window.page.url
    window.page.click("text=Search on")
    window.page.wait_for_selector("text=No message matches.")
    assert window.page.url != before, "the address says how far the search is"
    window.close()
