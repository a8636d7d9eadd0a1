"""Who is let in, what a page may load, and what hostile names, subjects and payloads become."""

import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest
from harness.hostile import make_hostile
from harness.served_ui import PAGES

from spark_stream.ui import payload
from spark_stream.ui.connection import Connection
from storage_core import Store

TOKEN = "correct horse battery staple"
TAGS = set(
    "html head meta title link script body a header div img nav ul li span main section p h1 h2 h3 table thead tbody "
    "tr th td form label input button select option dl dt dd pre code svg rect polyline line b br time footer".split()
)
ATTRIBUTES_WITH_ADDRESS = {"href", "src", "action", "hx-get"}


class Reader(HTMLParser):
    """Collects tags that are not ours, handlers, inline styles and foreign addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.bad.append(tag)
        for name, value in attributes:
            if name.startswith("on") or name == "style":
                self.bad.append(f"{tag} {name}={value}")
            if name in ATTRIBUTES_WITH_ADDRESS and not (value or "").startswith(("/", "?", "#")):
                self.bad.append(f"{tag} {name}={value}")
            if tag == "script" and name == "src" and not (value or "").startswith("/static/"):
                self.bad.append(f"script of {value}")


def test_nothing_that_a_store_holds_becomes_markup(volumes: list[Path], serve) -> None:
    with Store.create([str(volume) for volume in volumes]) as store:
        texts = make_hostile(store)
        assert len(texts) >= 200
        browser = serve(volumes)
        pages = ["/", "/streams", "/consumers", "/events", "/streams/HOSTILE/consumers/reader"]
        pages += [f"/streams/HOSTILE/{tab}" for tab in ("messages", "subjects", "copies", "configuration")]
        pages += [
            "/streams/HOSTILE/messages?count=200",
            "/streams/HOSTILE/messages?subject=%3Cscript%3E&field=%22%3E%3Cb%3E",
        ]
        pages += [f"/streams/HOSTILE/messages/{sequence}" for sequence in range(1, len(texts) + 1)]
        pages += [
            f"/streams/HOSTILE/messages/{sequence}?as={kind}"
            for sequence in range(1, 30, 3)
            for kind in payload.FORMATS
        ]
        pages += [
            "/streams/%3Cscript%3Ealert(1)%3C/script%3E/messages",
            "/%3Cscript%3E",
            "/streams?search=%22%3E%3Cscript%3E",
        ]
        for path in pages:
            answer = browser(path)
            assert answer.code in (200, 400, 404), (path, answer.code)
            assert len(answer.body) < 3 << 20, path
            reader = Reader()
            reader.feed(answer.text)
            assert reader.bad == [], path
            assert not payload.INVISIBLE.search(answer.text.replace("\r", "")), path
        assert browser(f"/api/streams/HOSTILE/messages/{len(texts)}").json["cut"] is True


def test_every_answer_says_what_it_may_load(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    for path in [*PAGES, "/api/overview", "/nothing", "/static/ui.js", "/streams/ORDERS/messages/1/raw"]:
        headers = browser(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
        assert headers["cache-control"] == (
            "no-store" if "/static/" not in path else "private, max-age=31536000, immutable"
        )


def test_only_names_of_this_server_are_answered(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    for name in ("127.0.0.1:1", "localhost", f"LOCALHOST:{browser.port}", "[::1]:80"):
        assert browser("/", Host=name).code == 200, name
    for name in (
        "evil.example",
        f"evil.example:{browser.port}",
        "127.0.0.1.evil.example",
        "",
        "localhost:x",
        "127.0.0.1@evil",
    ):
        assert browser("/api/streams/ORDERS/messages", Host=name).code == 403, name


def test_no_path_of_a_request_leads_to_a_file(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes)
    for path in (
        "/static/../server.py",
        "/static/..%2f..%2fui%2fserver.py",
        "/static/htmx.LICENSE",
        "/static//etc/passwd",
        "/streams/..%2f..%2fetc/messages",
        "/streams/ORDERS/blocks/..%2f..%2f..%2fvolume",
        f"/streams/ORDERS/blocks/{'0' * 32}",
    ):
        assert browser(path).code == 404, path
    for path in (
        "/streams/ORDERS/messages?at=99999999999999999999",
        "/streams/ORDERS/messages?at=-1",
        "/streams/ORDERS/copies?first=9&end=2",
        "/?span=1y",
        "/events?kind=nothing",
        "/streams?search=" + "x" * 2000,
    ):
        assert browser(path).code == 400, path
    assert browser("/", "POST").code == 405
    assert browser("/streams/ORDERS/messages", "DELETE").code == 405


def test_a_token_is_asked_for_everywhere_and_only_our_own_page_may_send_it(
    store: Store, volumes: list[Path], serve
) -> None:
    browser = serve(volumes, token=TOKEN)
    for path in PAGES:
        assert browser(path).headers["location"] == "/login"
    for path in ("/api/overview", "/live"):
        assert browser(path).code == 401
    assert browser("/static/ui.css").code == 200
    assert "ORDERS" not in browser("/login").text
    assert browser.form("/login", {"token": "correct horse"}).code == 403
    assert browser.form("/login", {"token": TOKEN}, Origin="http://evil.example").code == 403
    assert browser.form("/login", {"token": TOKEN}, Sec_Fetch_Site="cross-site").code == 403
    assert browser("/login", "POST", b"x" * 100_000).code == 403
    entered = browser.form("/login", {"token": TOKEN}, Origin=browser.address)
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert TOKEN not in cookie
    assert browser("/", Cookie=cookie.split(";")[0]).code == 200
    assert browser("/", Cookie="jstream_ui=0000").headers["location"] == "/login"
    assert browser("/api/overview", Authorization=f"Bearer {TOKEN}").code == 200
    assert browser("/api/overview", Authorization="Bearer x").code == 401


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: lo",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken=",
        b"GET /static/ui.css HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: lo",
    ],
)
def test_a_connection_that_sends_half_a_request_loses_its_place(
    store: Store, volumes: list[Path], serve, monkeypatch, sent: bytes
) -> None:
    """Without a token nobody can hold the places of those who have it."""
    monkeypatch.setattr(Connection, "request_s", 0.5)
    browser = serve(volumes, token=TOKEN)
    with socket.create_connection(("127.0.0.1", browser.port), timeout=60) as idle:
        idle.sendall(sent)
        with socket.create_connection(("127.0.0.1", browser.port), timeout=60) as viewer:
            head = f"GET /live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            viewer.sendall(head.encode())
            while idle.recv(1 << 16):
                pass
            viewer.settimeout(60)
            assert viewer.recv(1 << 16).startswith(b"HTTP/1.1 200")  # a whole request keeps its place
            store.stream("ORDERS").publish("orders.eu", b"one more")
            while b"event: scan" not in viewer.recv(1 << 16):
                pass


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"a": 1}', "json"),
        (b"\x81\xa1a\x01", "msgpack"),
        (b"plain", "text"),
        ("grün".encode()[:-2], "text"),
        (b"\xff\xfe\x00\x01", "hex"),
        (b"", "text"),
        (None, "null"),
        (b'{"a": ', "text"),
        (b"[" * 5000, "text"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str) -> None:
    assert payload.shown(data)["format"] == kind


def test_what_is_invisible_is_named() -> None:
    shown = str(payload.visible("a\u202eb<\x00\ud800\n"))
    assert shown == (
        'a<span class="mark">U+202E</span>b&lt;<span class="mark">U+0000</span><span class="mark">U+D800</span>\n'
    )
