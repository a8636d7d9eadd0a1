"""Subjects that two streams would take: refused as on a nats-server, unless the caller allows it."""

import asyncio
import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from storage_core.errors import SubjectsOverlapError
from storage_core.metadata.stream_changes import overlaps
from storage_core.store.store import Store
from storage_core.subjects import filters_overlap

nats_server = pytest.importorskip("harness.nats_server")

STREAMS = {"A": ["orders.>"], "B": ["pay.*.eu", "pay.log"]}
ASKED = [  # subjects of a stream C
    ["orders.new"], ["orders"], ["orders.*.eu"], ["other.>"], ["pay.x.*"], ["pay.*"], ["pay.x.us", "pay.x.eu"],
    ["A"], ["x", "pay.>"], ["pay"], ["orders.>"], ["pay.x.*.*"], ["*"], ["B.>"],
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    for name, subjects in STREAMS.items():
        store.add_stream(name=name, subjects=subjects)
    return store


def test_what_a_server_refuses_is_refused(store: Store, tmp_path: Path) -> None:
    asyncio.run(_compare(store, tmp_path))


async def _compare(store: Store, tmp_path: Path) -> None:
    server = nats_server.Server(nats_server.INSTALLED, tmp_path / "server")
    try:
        client = await server.connect()

        async def call(verb: str, name: str, subjects: list[str]) -> int:
            body = json.dumps({"name": name, "subjects": subjects}).encode()
            answer = json.loads((await client.request(f"$JS.API.STREAM.{verb}.{name}", body, timeout=10)).data)
            return answer.get("error", {}).get("err_code", 0)

        for name, subjects in STREAMS.items():
            assert await call("CREATE", name, subjects) == 0
        for subjects in ASKED:
            theirs = [await call("CREATE", "C", subjects)]
            if not theirs[0]:
                await client.request("$JS.API.STREAM.DELETE.C", b"", timeout=10)
            assert await call("CREATE", "C", ["c"]) == 0
            theirs.append(await call("UPDATE", "C", subjects))
            await client.request("$JS.API.STREAM.DELETE.C", b"", timeout=10)
            assert set(theirs) <= {0, 10065}, f"{subjects}: refused for another reason"
            assert [bool(code) for code in theirs] == _refusals(store, subjects), subjects
        await client.close()
    finally:
        server.end(signal.SIGKILL)


def _refusals(store: Store, subjects: list[str]) -> list[bool]:
    """Return whether making a stream with these subjects is refused, and editing another one to have them."""
    refusals = []
    for call in (store.add_stream, store.edit_stream):
        if call == store.edit_stream:
            store.add_stream(name="C", subjects=["c"])
        with suppress(SubjectsOverlapError):
            call(name="C", subjects=subjects)
        refusals.append(store.streams() != ["A", "B", "C"] or store.stream("C").config.subjects != tuple(subjects))
        if "C" in store.streams():
            store.delete_stream("C")
    return refusals


def test_the_error_names_the_other_stream_and_the_subjects(store: Store) -> None:
    with pytest.raises(SubjectsOverlapError) as caught:
        store.add_stream(name="C", subjects=["c", "pay.*.*", "pay.log"])
    assert caught.value.fields == {
        "stream": "C", "subjects": ["pay.*.*", "pay.log"], "other": "B", "other_subjects": ["pay.*.eu", "pay.log"],
    }  # fmt: skip


def test_an_overlap_that_is_allowed_stays_and_only_new_subjects_are_looked_at(store: Store) -> None:
    stream = store.add_stream({"name": "C", "subjects": ["orders.new"]}, allow_overlap=True)
    stream.edit(max_msgs=9)
    with pytest.raises(SubjectsOverlapError):
        stream.edit(subjects=["orders.new", "pay.log"])
    stream.edit(subjects=["orders.new", "c"])
    store.edit_stream(name="C", subjects=["orders.new", "pay.log"], allow_overlap=True)
    assert stream.config.subjects == ("orders.new", "pay.log")


@pytest.mark.parametrize("allow_overlap", ["false", 1, None])
def test_whether_it_is_allowed_is_true_or_false(store: Store, allow_overlap: Any) -> None:
    for call in (store.add_stream, store.edit_stream):
        with pytest.raises(ValueError, match="allow_overlap: .* is neither True nor False"):
            call(name="A", subjects=["a"], allow_overlap=allow_overlap)


def test_of_streams_that_are_made_at_once_one_gets_the_subject(store: Store, tmp_path: Path) -> None:
    barrier = Barrier(4)

    def make(number: int) -> bool:
        with Store.open(tmp_path / "store") as opened:
            opened.info()  # the state that it remembers has none of the streams to come
            barrier.wait()
            try:
                opened.add_stream(name=f"C{number}", subjects=["new.>"])
            except SubjectsOverlapError:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(make, range(4))) == 1
    assert len(store.streams()) == 3


def test_overlaps_are_those_of_every_stream_as_it_is_now(tmp_path: Path) -> None:
    rng, subjects = random.Random("overlaps"), ["a", "a.b", "a.*", "b.>", "*", "*.b", ">", "b.c.d", "c"]
    with Store.create(tmp_path / "many") as store:
        for step in range(60):
            name = f"S{rng.randrange(8)}"
            config = {"name": name, "subjects": rng.sample(subjects, rng.randint(1, 3))}
            if name not in store.streams():
                store.add_stream(config, allow_overlap=True)
            elif rng.random() < 0.3:
                store.delete_stream(name)
            else:
                store.edit_stream(config, allow_overlap=True)
            state, asked = store.view().state, rng.sample(subjects, rng.randint(1, 3))
            expected = sorted(
                stream.name
                for stream in state.streams.values()
                if stream.name != "S0" and any(filters_overlap(a, b) for a in asked for b in stream.config.subjects)
            )
            assert [overlap.other for overlap in overlaps(state, "S0", asked)] == expected, step


def test_a_copy_of_a_stream_keeps_its_subjects(store: Store, tmp_path: Path) -> None:
    store.stream("A").publish("orders.new", b"1")
    store.backup(tmp_path / "backup")
    store.restore_streams(tmp_path / "backup", ["A"], {"A": "OLD"})
    assert store.stream("OLD").config.subjects == ("orders.>",)
