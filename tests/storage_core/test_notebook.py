"""What notebooks show: everything escaped, states marked, and nothing asked of another host."""

import json
import pickle
import shutil
from html.parser import HTMLParser
from pathlib import Path

from spark_stream.pipelines.summary import Summary
from storage_core import Store

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
TAGS = {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "br", "svg", "rect"}


class Markup(HTMLParser):
    """What a browser sees: tags, addresses, text, classes of the boxes that mark states."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.boxes: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag == "rect":
            self.boxes.append(dict(attributes)["class"] or "")

    def handle_data(self, text: str) -> None:
        self.text += text


def shown(value: object) -> Markup:
    html = value._repr_html_()  # type: ignore[attr-defined]
    markup = Markup(html)
    assert markup.tags <= TAGS and markup.attributes <= {"class", "colspan", "width", "height", "x", "y", "aria-hidden"}
    assert "url(" not in html and "@import" not in html and "http" not in html.replace("http://www.w3.org/", "")
    return markup


def test_a_store_that_is_broken_says_so_and_nothing_of_it_becomes_markup(tmp_path: Path) -> None:
    volumes = [tmp_path / name for name in (f"disk-1 {HOSTILE.replace('/', '')}", "disk-2", "disk-3")]
    with Store.create(volumes) as store:
        stream = store.add_stream({"name": "ORDERS", "subjects": [f"orders.{HOSTILE}"[:60].replace(" ", "")]})
        stream.append([{"subject": stream.config.subjects[0], "data": b"x"}])
        consumer = stream.add_consumer({"name": "billing"})
        assert [shown(value).boxes for value in (store, stream)] == [["current"] * 3] * 2
        assert "Not delivered yet1" in shown(consumer).text
        shutil.rmtree(volumes[1])
        block = next((volumes[2] / "streams").glob("*/*.blk"))
        block.write_bytes(block.read_bytes()[:-1])
        for value in (store, store.cluster_info(), stream, stream.info()):
            assert "missing" in shown(value).boxes
        found = store.scrub()
        assert shown(found).boxes.count("damaged") == 1 + len(found["damage"])
        ids = [volume["name"] for volume in store.cluster_info()["volumes"]]
        assert "disk-3" in shown(found).text and not any(volume in shown(found).text for volume in ids)
        assert json.loads(json.dumps(found)) == found
        assert shown(pickle.loads(pickle.dumps(found))).text == shown(found).text
        drift = store.compare("ORDERS")
        assert shown(drift).boxes.count("damaged") == 2 and drift.verdict() in shown(drift).text
        assert "all damage was repaired" in shown(store.repair()).text
        assert "nothing is wrong" in shown(store.verify()).text
        assert HOSTILE.replace("/", "") in shown(store).text


def test_blocks_that_lack_their_files_are_one_row_for_each_volume(tmp_path: Path) -> None:
    with Store.create([tmp_path / name for name in ("disk-1", "disk-2", "disk-3")]) as store:
        stream = store.add_stream({"name": "ORDERS", "block_max_msgs": 10})
        stream.append([{"data": b"x"}] * 300)
        for block in (tmp_path / "disk-2").rglob("*.blk"):
            block.unlink()
        found = store.verify()
        assert len(found["damage"]) == 30
        markup = shown(found)
        assert markup.boxes.count("damaged") == 2 and "disk-21 to 300the file is missing" in markup.text


def test_a_run_of_a_pipeline_says_how_it_ended() -> None:
    summary = Summary("orders", "available-now")
    summary.add_batch(12, 10, 2)
    summary.cover({"ORDERS": 1}, {"ORDERS": 13})
    summary.finish(False, HOSTILE)
    markup = shown(summary)
    assert markup.boxes == ["damaged"] and f"failed: {HOSTILE}" in markup.text and "ORDERS: 1 to 12" in markup.text
