"""What pages may change with `--allow-changes`: plan, question, work, and who asked in the event log."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from harness.served_ui import TIMEOUT_S, Browser, form_on

from storage_core import Store

TOKEN = "correct horse battery staple"
KINDS = ("repair", "scrub", "maintain", "consumer-reset", "consumer-pause", "purge")
ABOUT = {"stream": "ORDERS", "consumer": "billing"}


def done(browser: Browser, kind: str, fields: dict[str, str]) -> dict[str, Any]:
    """Send a form, wait for the end of what it began, and return that."""
    begun = browser.form(f"/change/{kind}", fields, Origin=browser.address)
    assert begun.code == 303, begun.text
    until = time.monotonic() + 3 * TIMEOUT_S  # some start Spark
    while (task := browser.api(begun.headers["location"]))["state"] == "running":
        assert time.monotonic() < until, task
    browser.page(begun.headers["location"])
    return task


def test_without_the_option_nothing_can_be_changed(store: Store, volumes: list[Path], serve) -> None:
    browser, index = serve(volumes), store.view().index
    for kind in KINDS:
        assert browser(f"/change/{kind}?stream=ORDERS&consumer=billing").code == 404
        assert browser.form(f"/change/{kind}", ABOUT).code == 404
    assert browser("/changes").code == 404
    assert "/change" not in browser.page("/volumes") + browser.page("/streams/ORDERS/consumers/billing")
    assert store.view().index == index


def test_a_plan_says_what_would_be_done_and_does_nothing(store: Store, volumes: list[Path], serve) -> None:
    browser, index = serve(volumes, allows_changes=True), store.view().index
    plans = {kind: browser.api(f"/change/{kind}", **ABOUT) for kind in KINDS}
    facts = {kind: dict(plan["facts"]) for kind, plan in plans.items()}
    assert facts["purge"]["messages that go"] == "56"
    assert (facts["consumer-reset"]["continues with"], facts["consumer-reset"]["done, and handed out again"]) == (13, 0)
    assert facts["consumer-pause"]["for"] == "3,600 s"
    assert plans["repair"]["command"].startswith("jstream repair ORDERS --store ")
    again = dict(browser.api("/change/consumer-reset", to="earliest", **ABOUT)["facts"])
    assert (again["continues with"], again["done, and handed out again"]) == (1, 12)
    long_ago = dict(browser.api("/change/consumer-reset", to="1h", **ABOUT)["facts"])
    assert long_ago["continues with"] == 1
    some = dict(browser.api("/change/purge", stream="ORDERS", subject="orders.us", keep=3)["facts"])
    assert some["messages that stay"] == str(56 - int(some["messages that go"]))
    assert store.view().index == index
    assert store.stream("ORDERS").purge("orders.us", keep=3) == int(some["messages that go"])
    for path in ("/change/nothing", "/change/repair?stream=NO", "/change/consumer-reset?stream=ORDERS&consumer=no"):
        assert browser(path).code == 404, path
    for path in ("purge?stream=ORDERS&keep=1&seq=9", "consumer-pause?stream=ORDERS&consumer=billing&until=x"):
        assert browser(f"/change/{path}").code == 400, path


def test_what_was_planned_is_done_and_the_event_log_says_who_asked(store: Store, volumes: list[Path], serve) -> None:
    browser, stream = serve(volumes, allows_changes=True), store.stream("ORDERS")
    shutil.rmtree(volumes[1])
    (problem,) = browser.api("/overview")["health"]["problems"][:1]
    assert problem["change"] == "/change/repair"
    assert f'href="{problem["change"]}"' in browser.page("/")
    task = done(browser, "repair", form_on(browser, "repair") | {"who": "Ada"})
    assert (task["state"], task["outcome"].split(":")[0]) == ("done", "All is well")
    assert browser.api("/overview")["health"]["state"] == "ok"
    assert done(browser, "scrub", form_on(browser, "scrub", stream="ORDERS"))["outcome"].startswith("All is well")
    assert done(browser, "maintain", form_on(browser, "maintain"))["outcome"] == "Done"
    done(browser, "consumer-reset", form_on(browser, "consumer-reset", to="earliest", **ABOUT))
    assert stream.consumer("billing").info()["delivered"]["stream_seq"] == 0
    done(browser, "consumer-pause", form_on(browser, "consumer-pause", **ABOUT))
    assert stream.consumer("billing").info()["paused"]
    assert "Resume" in browser.page("/streams/ORDERS/consumers/billing")
    done(browser, "consumer-pause", form_on(browser, "consumer-pause", resume="yes", **ABOUT))
    assert not stream.consumer("billing").info()["paused"]
    planned = form_on(browser, "purge", stream="ORDERS")
    stream.publish("orders.eu", b"came after the plan")
    assert done(browser, "purge", planned | {"typed": "ORDERS"})["outcome"] == "Removed 56 messages"
    assert stream.state().message_count == 1
    asked = store.events(kind="asked")
    assert [event["reason"].split()[1].strip(",") for event in asked] == [
        "repair", "scrub", "maintain", "consumer", "consumer", "consumer", "stream"
    ]  # fmt: skip
    assert asked[0]["reason"] == "jstream repair, asked for by Ada from 127.0.0.1 on a page"
    assert (asked[3]["stream"], asked[3]["consumer"]) == ("ORDERS", "billing")
    assert len(browser.api("/changes")["changes"]) == 7


def test_streams_are_added_and_edited_and_messages_published(store: Store, volumes: list[Path], serve) -> None:
    browser, index = serve(volumes, allows_changes=True), store.view().index
    for kind, about in (("stream-add", {}), ("stream-edit", ABOUT), ("publish", ABOUT)):
        plan = browser.api(f"/change/{kind}", **about)
        assert plan["missing"] and "Type" not in browser.page(f"/change/{kind}", **about)
        refused = browser.form(f"/change/{kind}", {**about, **plan["fields"]}, Origin=browser.address)
        assert refused.code == 403 or "nothing was done" in refused.text
    assert store.view().index == index

    wanted = {"name": "NEW", "subjects": "new.>, newer", "max-bytes": "1GB", "max-age": "7d", "max-msgs": "9"}
    plan = browser.api("/change/stream-add", **wanted)
    assert plan["command"].startswith(
        "jstream stream add NEW --subjects 'new.>,newer' --max-msgs 9 --max-bytes 1073741824 --max-age 7d --store "
    )
    assert done(browser, "stream-add", form_on(browser, "stream-add", **wanted))["outcome"] == "Stream NEW is there"
    made = store.stream("NEW").info()["config"]
    assert (made["subjects"], made["max_msgs"], made["max_bytes"]) == (["new.>", "newer"], 9, 1 << 30)
    assert browser("/change/stream-add?name=NEW").code == browser("/change/stream-add?name=A&max-age=x").code == 400

    message = {"stream": "NEW", "subject": "newer", "data": '{"id": 1}', "header": "Trace: abc", "msg-id": "once"}
    form = form_on(browser, "publish", **message)
    assert done(browser, "publish", form)["outcome"] == "Stored as message 1"
    assert done(browser, "publish", form)["outcome"] == "It was stored before as message 1"
    stored = store.stream("NEW").get(1)
    assert (stored.subject, stored.data, dict(stored.headers)["Trace"]) == ("newer", b'{"id": 1}', b"abc")
    assert browser("/change/publish?stream=NEW&subject=new.*").code == 400

    for number in range(4):
        store.stream("NEW").publish("newer", b"%d" % number)
    less = {"stream": "NEW", "max-msgs": "2", "description": "two"}
    facts = dict(browser.api("/change/stream-edit", **less)["facts"])
    assert facts["max_msgs"] == "9 -> 2" and facts["is removed by the new limits"].startswith("3 messages")
    form = form_on(browser, "stream-edit", **less)
    store.stream("NEW").edit(description="meanwhile")
    moved = browser.form("/change/stream-edit", form | {"typed": "NEW"}, Origin=browser.address)
    assert moved.code == 400 and "the configuration of stream NEW changed since the plan was made" in moved.text
    assert store.stream("NEW").state().message_count == 5
    form = form_on(browser, "stream-edit", **less)
    assert done(browser, "stream-edit", form | {"typed": "NEW"})["outcome"] == "2 settings of stream NEW changed"
    assert store.stream("NEW").state().message_count == 2


def test_messages_of_another_copy_wait_for_a_decision(store: Store, volumes: list[Path], serve) -> None:
    before = [shutil.copytree(volume, volume.with_name(f"{volume.name} of before")) for volume in volumes[:2]]
    store.stream("ORDERS").publish("orders.eu", b"alone")
    for path, volume in zip(before, volumes, strict=False):
        shutil.rmtree(volume)
        path.rename(volume)
    with Store.open([str(volume) for volume in volumes]) as again:
        again.stream("ORDERS").publish("orders.eu", b"other")
    browser = serve(volumes, allows_changes=True)
    outcome = done(browser, "repair", form_on(browser, "repair"))["outcome"]
    assert outcome.startswith("You have to decide: ") and "1 message more on disk-3, sequences 62 to 62" in outcome
    named = "sequences 62 of stream ORDERS of another copy of the store"
    waiting = dict(browser.api("/change/repair", stream="ORDERS")["facts"])["waits for you"]
    assert waiting.startswith(named) and "`jstream export --set-aside ORDERS FILE`" in waiting
    assert dict(browser.api("/change/repair", loss="discard")["facts"])["is given up for good"] == named
    fields = form_on(browser, "repair", loss="discard") | {"typed": "lost"}
    assert done(browser, "repair", fields)["outcome"].startswith("All is well")
    assert "waits for you" not in dict(browser.api("/change/repair")["facts"])


def test_a_form_is_refused_that_nobody_meant(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes, allows_changes=True)
    planned = form_on(browser, "purge", stream="ORDERS") | {"typed": "ORDERS"}
    index = store.view().index
    without_secret = {name: value for name, value in planned.items() if name != "csrf"}
    assert browser.form("/change/purge", without_secret).code == 403
    assert browser.form("/change/purge", planned | {"csrf": "0" * 64}).code == 403
    assert browser.form("/change/purge", planned, Origin="http://evil.example").code == 403
    assert browser.form("/change/purge", planned, Sec_Fetch_Site="cross-site").code == 403
    assert browser.form("/change/purge", planned, Host="evil.example").code == 403
    assert browser.form("/change/purge", planned | {"typed": "orders"}).code == 400
    assert browser.form("/change/purge", planned | {"who": "x" * 101}).code == 400
    assert browser("/change/purge?stream=ORDERS&typed=ORDERS").code == 200
    assert store.view().index == index
    store.delete_stream("ORDERS")
    store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]}).publish("orders.eu", b"another stream")
    assert browser.form("/change/purge", planned).code == 410
    assert store.stream("ORDERS").state().message_count == 1
    with_token = serve(volumes, token=TOKEN, allows_changes=True)
    assert with_token.form("/change/maintain", {"csrf": planned["csrf"]}).headers["location"] == "/login"


def test_one_change_is_made_at_a_time(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes, allows_changes=True)
    fields = form_on(browser, "maintain")
    with store.session():
        begun = browser.form("/change/maintain", fields)
        assert begun.code == 303
        assert browser.form("/change/maintain", fields).code == 409
        assert browser.api(begun.headers["location"])["state"] == "running"
    until = time.monotonic() + TIMEOUT_S
    while browser.api(begun.headers["location"])["state"] == "running":
        assert time.monotonic() < until
    assert done(browser, "maintain", fields)["outcome"] == "Done"


def test_a_store_without_a_majority_says_why_nothing_was_done(store: Store, volumes: list[Path], serve) -> None:
    browser = serve(volumes, allows_changes=True)
    fields = form_on(browser, "consumer-pause", **ABOUT)
    for volume in volumes[1:]:
        shutil.rmtree(volume)
    task = done(browser, "consumer-pause", fields)
    assert task["state"] == "failed"
    assert "volumes" in task["outcome"]
    assert done(browser, "maintain", form_on(browser, "maintain"))["state"] == "failed"


def test_the_plan_of_a_repair_names_what_it_would_declare_lost(store: Store, volumes: list[Path], serve) -> None:
    row = store.stream_state("ORDERS").blocks.rows[-1]
    gone, named = f"{bytes(row['block_id']).hex()}.blk", f"sequences {row['first']}"
    aside = volumes[2].rename(volumes[2].with_name("unmounted"))
    volumes[2].mkdir()
    for volume in volumes[:2]:
        next(volume.rglob(gone)).unlink()
    browser = serve(volumes, allows_changes=True)
    facts = dict(browser.api("/change/repair")["facts"])
    assert facts["is left alone"].startswith(named) and "bring that back first" in facts["is left alone"]
    links = dict(browser.api("/change/repair")["others"])
    assert links["accept the loss"] == "/change/repair?loss=accept" and links["accept the loss"] in browser.page(
        "/change/repair"
    ).replace("&amp;", "&")
    accepting = browser.api("/change/repair", loss="accept")
    assert dict(accepting["facts"])["is declared lost"].startswith(named)
    assert (accepting["typed"], accepting["command"].split(" --store")[0]) == ("lost", "jstream repair --accept-loss")
    assert done(browser, "repair", form_on(browser, "repair"))["outcome"].startswith("Not all could be repaired")
    assert store.stream("ORDERS").info()["state"]["lost_ranges"] == []
    fields = form_on(browser, "repair", loss="accept")
    assert browser.form("/change/repair", fields).code == 400, "the word was not typed"
    assert "are lost" in done(browser, "repair", fields | {"typed": "lost"})["outcome"]
    assert store.stream("ORDERS").info()["state"]["lost_ranges"]
    shutil.rmtree(volumes[2])
    aside.rename(volumes[2])
    assert "were declared lost, and are on" in done(browser, "repair", form_on(browser, "repair"))["outcome"]
    (problem,) = [one for one in browser.api("/overview")["health"]["problems"] if "again" in one["what"]]
    assert problem["change"] == "/change/repair?stream=ORDERS&loss=take-back"
    assert dict(browser.api("/change/repair", loss="take-back")["facts"])["is served again"].startswith(named)
    assert done(browser, "repair", form_on(browser, "repair", loss="take-back"))["outcome"].startswith("All is well")
    assert store.stream("ORDERS").info()["state"]["lost_ranges"] == []
    assert browser("/change/repair?loss=discard&stream=ORDERS").code == 400


@pytest.mark.spark
def test_dead_letters_are_replayed_after_a_plan_that_says_how_many_parse_now(
    store: Store, volumes: list[Path], serve, tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    tables = """
checkpoint = "state/orders"
[source]
stream = "ORDERS"
[payload]
format = "json"
schema = "id DOUBLE"
[transform]
sql = "SELECT CAST(id AS STRING) AS data FROM messages"
[sink]
kind = "jstream"
stream = "OUT"
[dead_letters]
stream = "DEAD"
[spark]
"spark.master" = "local[1]"
"""
    file.write_text(tables)
    store.add_stream({"name": "OUT"})
    dead = store.add_stream({"name": "DEAD"})
    for data, reason in ((b'{"id": 1.5}', b"id: 1.5 is not INT"), (b"[]", b"payload is JSON, but not an object")):
        added = {"Reason": reason, "Stream": b"ORDERS", "Sequence": b"7", "Subject": b"orders.eu",
                 "Timestamp": b"2026-11-21T12:00:00.000000Z", "Pipeline": b"orders"}  # fmt: skip
        dead.publish("DEAD", data, headers=[(f"Jstream-{key}", value) for key, value in added.items()])
    browser = serve(volumes, allows_changes=True, pipelines=[file])
    link = "/change/replay-plan?pipeline=0"
    assert f'href="{link}"' in browser.page("/pipelines/0") and f'href="{link}"' in browser.page("/change/replay")
    assert "plan it first" in browser.api("/change/replay")["missing"]
    assert browser("/change/replay?pipeline=1").code == 404

    file.write_text(tables.replace('"json"', '"jsn"'))
    failed = done(browser, "replay-plan", form_on(browser, "replay-plan"))
    assert failed["state"] == "failed" and f"{file}: payload.format: " in failed["outcome"]
    file.write_text(tables)
    task = done(browser, "replay-plan", form_on(browser, "replay-plan"))
    assert (task["state"], task["outcome"]) == ("done", "1 letter would be replayed, 1 letter would stay")
    assert 'href="/change/replay?pipeline=0"' in browser.page(f"/changes/{task['number']}")
    facts = dict(browser.api("/change/replay")["facts"])
    assert facts["id: is not INT"] == "1 parse, 0 stay" and facts["letters that stay"] == "1"
    planned = form_on(browser, "replay")
    assert "look at it first" in browser.form("/change/replay", planned | {"planned": "old"}).text
    assert done(browser, "replay", planned)["outcome"] == "1 letter replayed, 1 letter stayed"
    assert store.stream("OUT").read(columns=["data"]).read_all()["data"].to_pylist() == [b"1.5"]
    assert dead.state().message_count == 1
    file.write_text(tables + "# changed\n")
    assert "plan it first" in browser.api("/change/replay")["missing"]
