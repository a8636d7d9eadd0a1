"""`python -m scripts.ui_screenshots`: the pictures of pages in docs/guide/ui.md, of a store with a lost volume."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness.served_ui import blocks_of, make_orders, served  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from storage_core import Store  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WAIT_MS = 120_000
SHOTS = (
    ("ui-overview", "/", 1080, 900, "light"),
    ("ui-copies", "/streams/ORDERS/copies", 1080, 780, "light"),
    ("ui-messages", "/streams/ORDERS/messages?at=15&count=12", 1080, 760, "dark"),
    ("ui-purge", "/change/purge?stream=ORDERS&subject=orders.us&keep=10", 1080, 780, "light"),
    ("ui-phone", "/", 420, 840, "dark"),
)


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory(prefix="shop-") as place, Store.create(_volumes(place)) as store:
        make_orders(store)
        stream = store.stream("ORDERS")
        for number in range(40):
            stream.append([{"subject": "orders.eu", "data": b'{"id": %d}' % (100 * number + at)} for at in range(25)])
            time.sleep(0.05)
        live = [bytes(block).hex() for block in store.stream_state("ORDERS").blocks.rows["block_id"]]
        damaged = next(path for path in blocks_of(Path(place) / "disk-3") if path.stem == live[3])
        damaged.write_bytes(damaged.read_bytes()[:-100])
        store.scrub()
        shutil.rmtree(Path(place) / "disk-2")
        with (
            served([Path(volume) for volume in _volumes(place)], allows_changes=True) as browser,
            sync_playwright() as playwright,
        ):
            window = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            for name, path, width, height, scheme in SHOTS:
                page = window.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(browser.address + path, wait_until="load", timeout=WAIT_MS)
                page.screenshot(path=str(IMAGES / f"{name}.png"), timeout=WAIT_MS)
                page.close()
            window.close()


def _volumes(place: str) -> list[str]:
    return [f"{place}/disk-{number}" for number in (1, 2, 3)]


if __name__ == "__main__":
    main()
