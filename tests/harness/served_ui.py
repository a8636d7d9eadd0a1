"""`jstream ui` on a store, in a thread of this process, a client that follows nothing by itself, and a store for it."""

import http.client
import json
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from spark_stream.ui.server import bind, server_of
from spark_stream.ui.site import Site
from storage_core import Store

TIMEOUT_S = 120
PAGES = [
    "/",
    "/streams",
    "/streams/ORDERS/messages",
    "/streams/ORDERS/subjects",
    "/streams/ORDERS/copies",
    "/streams/ORDERS/configuration",
    "/streams/ORDERS/consumers/billing",
    "/consumers",
    "/volumes",
    "/events",
]


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Asks one server; keeps no cookies."""

    def __init__(self, port: int, site: Site) -> None:
        self.port, self.site = port, site
        self.address = f"http://127.0.0.1:{port}"

    def __call__(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """`headers`: with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def page(self, path: str, **query: object) -> str:
        """Return a page that must be there."""
        answer = self(f"{path}?{urlencode(query)}" if query else path)
        assert answer.code == 200, (path, answer.code, answer.text[:2000])
        return answer.text

    def api(self, path: str, **query: object) -> Any:
        answer = self(f"/api{path}?{urlencode(query)}" if query else f"/api{path}")
        assert answer.code == 200, (path, answer.code, answer.text[:2000])
        return answer.json

    def form(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        body = urlencode(fields).encode()
        return self(path, "POST", body, **{"Content_Type": "application/x-www-form-urlencoded", **headers})


@contextmanager
def served(
    volumes: list[Path], token: str | None = None, others: Mapping[str, list[Path]] | None = None, **options: Any
) -> Iterator[Browser]:
    """`others`: stores beside the first one, by the name that their pages begin with."""
    site, *beside = (
        Site([str(path) for path in paths], fresh_s=0, **options) for paths in (volumes, *(others or {}).values())
    )
    with bind("127.0.0.1", 0) as listener:
        server = server_of(site, "127.0.0.1", token, others=dict(zip(others or {}, beside, strict=True)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        for each in (site, *beside):
            each.start()
        thread.start()
        try:
            yield Browser(listener.getsockname()[1], site)
        finally:
            for each in (site, *beside):
                each.stop()
            server.should_exit = True
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def make_orders(store: Store) -> None:
    stream = store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    for block in range(6):
        rows = [
            {
                "subject": f"orders.{'eu' if number % 2 else 'us'}",
                "data": json.dumps({"id": number, "to": {"n": number % 5}}),
            }
            for number in range(block * 10, block * 10 + 10)
        ]
        stream.append([{**row, "data": row["data"].encode()} for row in rows])
    stream.publish("orders.eu", b"\x82\xa2id\x07\xa4name\xa3Bob", headers=[("Trace", b"abc")])
    stream.remove(range(21, 26))
    consumer = stream.add_consumer({"name": "billing"})
    consumer.ack(consumer.fetch(12).column("sequence"))
    stream.add_consumer({"name": "mailer", "filter_subjects": ["orders.us"]})


def blocks_of(volume: Path) -> list[Path]:
    """Return the block files of a volume, by time of their making."""
    return sorted((volume / "streams").glob("*/*.blk"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def form_on(browser: Browser, kind: str, **query: object) -> dict[str, str]:
    """Return the hidden fields of the form that a plan ends with."""
    page = browser.page(f"/change/{kind}", **query)
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.split('method="post"')[1])
    return {name: unescape(value) for name, value in hidden}


@contextmanager
def appending(store: Store, every_s: float = 0.2) -> Iterator[None]:
    """Publish messages, one after the other, beside what is done inside."""
    stopping, stream, count = threading.Event(), store.stream("ORDERS"), 0

    def publish() -> None:
        nonlocal count
        while not stopping.is_set():
            stream.publish("orders.eu", b'{"id": %d}' % count)
            count += 1
            stopping.wait(every_s)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(TIMEOUT_S)
    assert count
    assert not thread.is_alive()


def replace_with_another_store(volume: Path) -> None:
    """Put a volume of another store where this one was."""
    shutil.rmtree(volume)
    with Store.create([str(volume)]) as other:
        other.add_stream({"name": "OTHER"})
