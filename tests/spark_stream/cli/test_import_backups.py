"""`jstream import nats` of what `nats stream backup` wrote, of sources that have grown, and objects out of buckets."""

import base64
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import BINARIES, INSTALLED, LiveServer, create_stream, fill, frame, live_server, numbered

from storage_core import Store
from storage_core.foreign.nats.directory import BACKUP_ARCHIVE as ARCHIVE
from storage_core.foreign.nats.directory import BACKUP_DESCRIPTION as DESCRIPTION
from storage_core.live.connection import Connection
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import stream_info

COLUMNS = ("sequence", "subject", "timestamp_ns", "data")


@pytest.fixture(params=[BINARIES[0], BINARIES[-2]], ids=lambda binary: binary.parents[1].name)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path / "server", request.param) as server:
        yield server


def back_up(connection: Connection, stream: str, folder: Path, with_consumers: bool = True) -> None:
    """Write a backup as `nats stream backup` does."""
    folder.mkdir()
    target = "backup.chunks"  # a server waits two seconds for a subscription of exactly this
    connection.subscribe(target)
    body = {"deliver_subject": target, "no_consumers": not with_consumers, "chunk_size": 128 * 1024}
    connection.publish(f"$JS.API.STREAM.SNAPSHOT.{stream}", json.dumps(body).encode(), f"{connection.inbox}.begun")
    with (folder / ARCHIVE).open("wb") as file:
        while True:
            received = connection.receive(10.0)
            assert received is not None
            block, frames = received
            for at, (subject, _, payload) in enumerate(connection.replies(block, frames)):
                if subject.endswith(".begun"):
                    description = json.loads(payload)
                    assert "error" not in description, description
                    (folder / DESCRIPTION).write_text(json.dumps(description))
                    continue
                if not payload:
                    return
                file.write(payload)
                line = block[frames.starts[at] : frames.line_ends[at]].tobytes().split(b" ")
                if len(line) > 4 or line[0] == b"MSG" and len(line) == 5:
                    connection.publish(line[3].decode())


def source_rows(server: LiveServer, stream: str) -> list[dict[str, Any]]:
    with server.connect() as connection:
        info = stream_info(connection, stream)
    part = Range(stream, info.created, info.first_sequence, info.next_sequence)
    batches = read_range(server.servers(), part, lambda error: None)
    return [row for messages in batches for row in messages.batch(stream, COLUMNS).to_pylist()]


def imported_rows(volume: Path, stream: str) -> list[dict[str, Any]]:
    with Store.open(volume, read_only=True) as store:
        rows: list[dict[str, Any]] = store.stream(stream).read(columns=COLUMNS).read_all().to_pylist()
        return rows


def deliver(connection: Connection, stream: str, count: int) -> list[str]:
    """Pull messages for the consumer `reader`, and return where their acknowledgements go."""
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.reader"
    connection.publish(subject, b'{"batch":%d}' % count, f"{connection.inbox}.pulled")
    replies: list[str] = []
    while len(replies) < count:
        received = connection.receive(10.0)
        assert received is not None
        block, frames = received
        lines = (block[frames.starts[at] : frames.line_ends[at]].tobytes().decode() for at in range(len(frames)))
        replies += [line.split(" ")[3] for line in lines]
    return replies


@pytest.mark.parametrize(
    ("binary", "with_consumers"),
    [(BINARIES[-2], True), (INSTALLED, True), (INSTALLED, False)],
    ids=["files", "messages", "messages alone"],
)
def test_backup_is_imported_with_holes_and_consumers(
    jstream: Any, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_consumers: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    headers = [("Trace", b"a"), ("Trace", b"\xff")]
    with live_server(tmp_path / "server", binary, jetstream='cipher: aes, key: "k"') as server:
        with server.connect() as connection:
            create_stream(connection, "A", compression="s2", first_seq=100)
            payloads = (random.Random(3).randbytes(number % 900) for number in range(12_000))
            fill(connection, "A", (frame(f"A.{len(data) % 5}", data, headers * (len(data) % 2)) for data in payloads))
            for sequence in (100, 101, 177, 5_000, 12_099):
                connection.request("STREAM.MSG.DELETE", "A", body={"seq": sequence})
            durable = {"durable_name": "reader", "ack_policy": "explicit", "ack_wait": 3600 * 10**9}
            connection.request("CONSUMER.DURABLE.CREATE", "A", "reader", body={"stream_name": "A", "config": durable})
            replies = deliver(connection, "A", 6)
            for reply in (replies[0], replies[2]):
                connection.publish(reply, b"+ACK")
            back_up(connection, "A", tmp_path / "backup", with_consumers)
        report = json.loads(jstream.done("import", "nats", tmp_path / "backup", "--json"))
        assert imported_rows(jstream.volume, "A") == source_rows(server, "A")
    (stream,) = report["streams"]
    assert (stream["name"], stream["messages"], stream["lost"]) == ("A", 11_995, 0)
    assert (stream["first_seq"], stream["last_seq"]) == (102, 12_099)
    assert stream["consumers"] == (["reader"] if with_consumers else [])
    if with_consumers:
        reader = json.loads(jstream.done("consumer", "info", "A", "reader", "--json"))
        assert reader["ack_floor"]["stream_seq"] == 102
    assert not list((tmp_path / "cache" / "jstream" / "backups").iterdir())
    for reader in (("drift", "nats", tmp_path / "backup"), ("mirror", server.url, "A", "--from", tmp_path / "backup")):
        assert "`jstream import nats` takes it" in jstream(*reader).err
    assert jstream("import", "nats", tmp_path / "backup").err.startswith("stream A was imported before")


@pytest.mark.parametrize(
    ("binary", "storage"),
    [(BINARIES[-2], "file"), (INSTALLED, "file"), (INSTALLED, "memory")],
    ids=["files", "messages", "messages in memory"],
)
def test_backup_of_a_stream_that_was_purged_keeps_its_next_sequence(
    jstream: Any, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with live_server(tmp_path / "server", binary) as server, server.connect() as connection:
        create_stream(connection, "A", storage=storage)
        fill(connection, "A", numbered("A", 2_000))
        connection.request("STREAM.PURGE", "A")
        back_up(connection, "A", tmp_path / "backup")
    (stream,) = json.loads(jstream.done("import", "nats", tmp_path / "backup", "--json"))["streams"]
    assert (stream["messages"], stream["lost"], stream["last_seq"]) == (0, 0, 2_000)


@pytest.mark.parametrize(
    ("binary", "damage"),
    [
        *((BINARIES[-2], damage) for damage in ("flipped", "short", "not S2", "other files")),
        *((INSTALLED, damage) for damage in ("flipped", "short", "no description")),
    ],
)
def test_backup_that_is_damaged_is_refused_with_its_file(
    jstream: Any, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with live_server(tmp_path / "server", binary) as server, server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 2_000))
        back_up(connection, "A", tmp_path / "backup")
    archive = tmp_path / "backup" / ARCHIVE
    content = bytearray(archive.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "short":
        del content[len(content) // 2 :]
    elif damage == "not S2":
        content[:] = b"nothing of that kind" * 9
    elif damage == "no description":
        (tmp_path / "backup" / DESCRIPTION).write_text("{}")
        archive = tmp_path / "backup" / DESCRIPTION
    else:
        content[:] = tar_in_s2({"../../escaped": b"x"})
    if archive.name == ARCHIVE:
        archive.write_bytes(content)
    outcome = jstream("import", "nats", tmp_path / "backup")
    assert outcome.code == 1
    assert str(archive) in outcome.err
    assert not (tmp_path / "cache" / "jstream" / "escaped").exists()
    assert json.loads(jstream.done("stream", "ls", "--json")) == []


def tar_in_s2(files: dict[str, bytes]) -> bytes:
    import io
    import tarfile

    from storage_core.checksum import crc32c

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    data = made.getvalue()
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    chunk = masked.to_bytes(4, "little") + data
    return b"\xff\x06\x00\x00S2sTwO" + b"\x01" + len(chunk).to_bytes(3, "little") + chunk


def test_import_of_a_source_that_has_grown_appends_what_is_new(
    jstream: Any, server: LiveServer, tmp_path: Path
) -> None:
    with server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 1_000))
    server.stop()
    jstream.done("import", "nats", server.store)
    server.start()
    with server.connect() as connection:
        fill(connection, "A", numbered("A", 500, 1_000))
        connection.request("STREAM.MSG.DELETE", "A", body={"seq": 1_200})
    server.stop()
    report = json.loads(jstream.done("import", "nats", server.store, "--json"))
    (stream,) = report["streams"]
    assert (stream["messages"], stream["holes"], stream["last_seq"]) == (499, 1, 1_500)
    server.start()
    assert imported_rows(jstream.volume, "A") == source_rows(server, "A")
    server.stop()
    assert json.loads(jstream.done("import", "nats", server.store, "--json"))["streams"][0]["messages"] == 0


def test_import_of_another_source_of_the_name_is_refused(jstream: Any, server: LiveServer, tmp_path: Path) -> None:
    with server.connect() as connection:
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 1_000))
    server.stop()
    jstream.done("import", "nats", server.store)
    server.start()
    with server.connect() as connection:
        connection.request("STREAM.DELETE", "A")
        create_stream(connection, "A")
        fill(connection, "A", numbered("A", 2_000))
    server.stop()
    outcome = jstream("import", "nats", server.store)
    assert outcome.code == 1
    assert "stream 'A' exists" in outcome.err


def put(connection: Connection, name: str, content: bytes, bucket: str = "box") -> None:
    """Store an object as clients do."""
    chunk_id = hashlib.sha1(name.encode()).hexdigest()[:22]
    pieces = [content[at : at + 1_000] for at in range(0, len(content), 1_000)]
    fill(connection, f"OBJ_{bucket}", [frame(f"$O.{bucket}.C.{chunk_id}", piece) for piece in pieces])
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    description = {"name": name, "bucket": bucket, "nuid": chunk_id, "size": len(content), "chunks": len(pieces)}
    place = base64.urlsafe_b64encode(name.encode()).decode()
    message = json.dumps({**description, "digest": f"SHA-256={digest}"}).encode()
    fill(connection, f"OBJ_{bucket}", [frame(f"$O.{bucket}.M.{place}", message)])


def test_objects_are_put_together_again_and_checked(jstream: Any, server: LiveServer, tmp_path: Path) -> None:
    subjects = ["$O.box.C.>", "$O.box.M.>"]
    objects = {"plain.txt": b"text", "../up/a b": bytes(range(256)) * 40, "empty": b"", "large": b"y" * 12_345}
    with server.connect() as connection:
        create_stream(connection, "OBJ_box", subjects=subjects, allow_rollup_hdrs=True)
        for name, content in objects.items():
            put(connection, name, content)
        put(connection, "broken", b"z" * 5_000)
        last = stream_info(connection, "OBJ_box").next_sequence - 1
        connection.request("STREAM.MSG.DELETE", "OBJ_box", body={"seq": last - 2})
    server.stop()
    jstream.done("import", "nats", server.store)
    outcome = jstream("export", "OBJ_box", tmp_path / "out", "--objects", "--json")
    assert outcome.code == 1
    report = json.loads(outcome.out)
    written = {row["name"]: tmp_path / "out" / row["file"] for row in report["objects"] if row["file"]}
    assert {name: path.read_bytes() for name, path in written.items()} == objects
    assert {path.parent for path in written.values()} == {tmp_path / "out"}
    (bad,) = [row for row in report["objects"] if row["problem"]]
    assert (bad["name"], bad["problem"]) == ("broken", "4 chunks of 4000 bytes are there, 5 of 5000 were stored")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in written.values())


def test_objects_of_what_is_no_bucket_are_refused(jstream: Any, tmp_path: Path) -> None:
    jstream.done("stream", "add", "A", "--subjects", "A.>")
    outcome = jstream("export", "A", tmp_path / "out", "--objects")
    assert outcome.code == 1
    assert "is no bucket of objects" in outcome.err
    assert jstream("export", "A", tmp_path / "out", "--objects", "--format", "jsonl").code == 2


def test_address_of_a_server_leads_to_mirror(jstream: Any) -> None:
    assert "`jstream mirror`" in jstream("import", "nats", "nats://a:4222").err
