"""Several stores in one server: each below its name, and no page of one leads into another by mistake."""

import re
from html import unescape
from pathlib import Path

import pytest
from harness.served_ui import PAGES, Browser, form_on, make_orders

from storage_core import Store


@pytest.fixture
def two(store: Store, volumes: list[Path], tmp_path: Path, serve) -> Browser:
    with Store.create(tmp_path / "other") as other:
        make_orders(other)
        other.stream("ORDERS").publish("orders.eu", b"of the other")
    return serve(volumes, others={"other": [tmp_path / "other"]}, allows_changes=True)


def test_each_page_of_a_store_leads_to_pages_of_the_same_store(two: Browser) -> None:
    for root, last in (("", 61), ("/@other", 62)):
        for path in PAGES:
            text = two.page(f"{root}{path}")
            links = [unescape(link) for link in re.findall(r' (?:href|action|src|hx-get)="(/[^"]*)"', text)]
            assert links and all(link.startswith(f"{root}/") for link in links), (path, links)
            assert root or not any("@other" in link for link in links)
            for link in {link for link in links if "/static/" not in link and "/raw" not in link}:
                assert two(link).code in (200, 307), link
        assert two(f"{root}/api/streams/ORDERS/messages/{last}").code == 200
        assert two(f"{root}/api/streams/ORDERS/messages/63").code == 404
    assert two("/@nothing/streams").code == 404


def test_the_page_of_all_stores_says_how_each_stands(two: Browser, volumes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other" / "jstream.volume").write_bytes(b"")
    default, other = two.api("/stores")["stores"]
    assert (default["name"], default["health"]["state"], default["streams"]) == ("default", "ok", 1)
    assert (other["name"], other["root"], other["health"]["state"]) == ("@other", "/@other", "critical")
    page = two.page("/stores")
    assert "href='/@other/'" in page and "href='/'" in page and "href='/stores'" in two.page("/@other/events")


def test_a_change_is_made_in_the_store_whose_page_asked(two: Browser, store: Store, tmp_path: Path) -> None:
    text = two.page("/@other/change/purge", stream="ORDERS")
    assert 'action="/@other/change/purge"' in text
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text.split('method="post"')[1])
    form = {name: unescape(value) for name, value in hidden} | {"typed": "ORDERS"}
    begun = two.form("/@other/change/purge", form, Origin=two.address)
    assert (begun.code, begun.headers["location"]) == (303, "/@other/changes/1")
    while two("/@other/api/changes/1").json["state"] == "running":
        pass
    assert store.stream("ORDERS").state().message_count == 56
    assert Store.open(tmp_path / "other").stream("ORDERS").state().message_count == 0
    assert form_on(two, "purge", stream="ORDERS")["incarnation"] != form["incarnation"]
    assert two("/changes/1").code == 404, "changes are of a store"


def test_one_token_opens_all_stores(store: Store, volumes: list[Path], serve) -> None:
    token = "correct horse battery staple"
    browser = serve(volumes, token=token, others={"again": volumes})
    assert browser("/@again/streams").headers["location"] == "/login"
    cookie = browser.form("/login", {"token": token}).headers["set-cookie"].split(";")[0]
    assert browser("/@again/streams", Cookie=cookie).code == browser("/streams", Cookie=cookie).code == 200
