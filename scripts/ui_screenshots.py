"""`python -m scripts.ui_screenshots [--all DIR]`: pictures of the pages, of a store that is broken or whole.

Without an option those that docs/guide/ui.md shows are made. With one every page is photographed, wide and on a phone,
light and dark, and the pictures are to be looked at: no test sees that a page is ugly.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness.served_ui import PAGES, Browser, blocks_of, make_orders, served  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from spark_stream.pipelines.state import PipelineState  # noqa: E402
from spark_stream.pipelines.summary import Summary  # noqa: E402
from storage_core import Store  # noqa: E402

IMAGES = ROOT / "docs" / "images"
NODES = [ROOT / "tests" / "data" / "nats-orders" / "store" / name for name in ("n1", "n2", "n3")]
WAIT_MS = 120_000
WIDE, PHONE = 1280, 420
SHOTS = (
    ("ui-overview", "/", 1080, 900, "light"),
    ("ui-copies", "/streams/ORDERS/copies", 1080, 780, "light"),
    ("ui-messages", "/streams/ORDERS/messages?at=15&count=12", 1080, 760, "dark"),
    ("ui-purge", "/change/purge?stream=ORDERS&subject=orders.us&keep=10", 1080, 780, "light"),
    ("ui-phone", "/", PHONE, 840, "dark"),
)
PIPELINE = """
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


def make_store(place: Path) -> Store:
    """Make a shop: orders that are consumed, payments, and dead letters of a pipeline."""
    store = Store.create(_volumes(place))
    make_orders(store)
    stream = store.stream("ORDERS")
    for number in range(40):
        stream.append([{"subject": "orders.eu", "data": b'{"id": %d}' % (100 * number + at)} for at in range(25)])
        time.sleep(0.05)
    payments = store.add_stream({"name": "PAYMENTS", "subjects": ["payments.*.>"], "max_age": "30d"})
    rows = [{"subject": f"payments.{'card' if at % 3 else 'cash'}.{at % 7}", "data": b"paid"} for at in range(500)]
    payments.append(rows)
    dead = store.add_stream({"name": "DEAD", "subjects": ["dead"]})
    for sequence, reason in ((3, "id: no number"), (4, "id: no number"), (9, "not JSON")):
        noted = {"Reason": reason, "Stream": "ORDERS", "Sequence": str(sequence), "Pipeline": "orders"}
        dead.publish("dead", b"x", headers=[(f"Jstream-{key}", value.encode()) for key, value in noted.items()])
    return store


def make_pipeline(place: Path) -> Path:
    file = place / "orders.toml"
    file.write_text(PIPELINE)
    state = PipelineState(str(place / "state/orders"))
    for rows_in in (512, 700, 31):
        summary = Summary("orders", "available-now", rows_in=rows_in, rows_out=rows_in - 1, rows_dead=1)
        summary.finish(ok=rows_in != 31, error="" if rows_in != 31 else "the sink is full")
        state.add_run(summary.to_json())
    return file


def break_store(store: Store, place: Path) -> None:
    """Damage a block of one volume, and lose another volume."""
    live = [bytes(block).hex() for block in store.stream_state("ORDERS").blocks.rows["block_id"]]
    damaged = next(path for path in blocks_of(place / "disk-3") if path.stem == live[3])
    damaged.write_bytes(damaged.read_bytes()[:-100])
    store.scrub()
    shutil.rmtree(place / "disk-2")


def for_documents(chromium: Any, place: Path) -> None:
    with make_store(place) as store:
        break_store(store, place)
        with served(_paths(place), allows_changes=True) as browser:
            for name, path, width, height, scheme in SHOTS:
                page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(browser.address + path, wait_until="load", timeout=WAIT_MS)
                page.screenshot(path=str(IMAGES / f"{name}.png"), timeout=WAIT_MS)
                page.close()


def of_all(chromium: Any, place: Path, folder: Path) -> None:
    with make_store(place) as store:
        options = {"allows_changes": True, "pipelines": [make_pipeline(place)], "rescues": NODES}
        with served(_paths(place), **options) as browser:
            _photograph(chromium, browser, folder, "whole", _pages(store), (("wide-light", WIDE, "light"),))
            phone = (("phone-dark", PHONE, "dark"),)
            _photograph(chromium, browser, folder, "whole", _pages(store), phone)
            break_store(store, place)
            looks = (("wide-dark", WIDE, "dark"), ("phone-light", PHONE, "light"))
            _photograph(chromium, browser, folder, "broken", _pages(store), looks)
            page = chromium.new_page(viewport={"width": WIDE, "height": 800})
            page.goto(f"{browser.address}/rescue", timeout=WAIT_MS)
            page.get_by_role("button", name="Scan").click()
            page.get_by_role("link", name="ORDERS").wait_for(timeout=WAIT_MS)
            page.close()
            looks = (("wide-light", WIDE, "light"), ("phone-dark", PHONE, "dark"))
            _photograph(chromium, browser, folder, "rescue", ["/rescue", "/rescue/streams/ORDERS"], looks)
        with served(_paths(place), token="a token of many letters") as browser:
            _photograph(chromium, browser, folder, "token", ["/login"], (("wide-light", WIDE, "light"),))


def _pages(store: Store) -> list[str]:
    block = bytes(store.stream_state("ORDERS").blocks.rows["block_id"][3]).hex()
    volume = store.cluster_info()["volumes"][2]["name"]
    more = ["/pipelines", "/pipelines/0", "/nothing", "/rescue", "/streams/ORDERS/messages/61", "/changes"]
    more += [f"/streams/ORDERS/blocks/{block}?volume={volume}", "/streams/ORDERS/messages?at=15&count=12"]
    more += ["/streams/ORDERS/copies?first=21&end=200"]
    more += [f"/change/{kind}?stream=ORDERS&consumer=billing" for kind in ("repair", "purge", "consumer-reset")]
    return [*PAGES, *more]


def _photograph(
    chromium: Any, browser: Browser, folder: Path, state: str, paths: list[str], looks: tuple[tuple[str, int, str], ...]
) -> None:
    for look, width, scheme in looks:
        page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        for path in paths:
            page.goto(browser.address + path, wait_until="load", timeout=WAIT_MS)
            name = path.split("?")[0].strip("/").replace("/", "-")[:40] or "overview"
            name += "-some" if "at=" in path or "first=" in path else ""
            page.screenshot(path=str(folder / f"{state}-{look}-{name}.png"), full_page=True, timeout=WAIT_MS)
        page.close()


def _volumes(place: Path) -> list[str]:
    return [str(path) for path in _paths(place)]


def _paths(place: Path) -> list[Path]:
    return [place / f"disk-{number}" for number in (1, 2, 3)]


def main(folder: Path | None) -> None:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory(prefix="shop-") as place, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        if folder is None:
            for_documents(chromium, Path(place))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            of_all(chromium, Path(place), folder)
        chromium.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.ui_screenshots", description=__doc__)
    parser.add_argument("--all", type=Path, metavar="DIR", help="photograph every page into this directory")
    main(parser.parse_args().all)
