"""Encrypted streams, written by real servers with a key, read with that key and refused without."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import CorruptionError, DataLossError, UnsupportedVersionError
from storage_core.foreign import open_foreign, read_foreign_slice
from storage_core.foreign.nats.encryption import hchacha20

KEY = "fixture-key-not-secret"
COLUMNS = ("sequence", "subject", "timestamp_ns", "headers", "data")
CASES = ["encrypted", "encrypted-aes", "encrypted-s2"]  # XChaCha20; AES; XChaCha20 over S2


def test_hchacha20_gives_the_key_of_the_draft() -> None:
    """Source: draft-irtf-cfrg-xchacha-03, section 2.2.1."""
    nonce = bytes.fromhex("000000090000004a0000000031415927")
    derived = "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"
    assert hchacha20(bytes(range(32)), nonce).hex() == derived


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_an_encrypted_stream_reads_as_a_client_got_it(
    case: Callable[[str], Any], tmp_path: Path, name: str, with_index: bool
) -> None:
    one = case(name)
    shutil.copytree(one.store, tmp_path / "store")
    if not with_index:
        next(tmp_path.rglob("index.db")).unlink()
    store = open_foreign(tmp_path, encryption_key=KEY)
    assert store.state(one.stream).source == ("index.db" if with_index else "blocks")  # type: ignore[attr-defined]
    parts = pickle.loads(pickle.dumps(store.plan(one.stream)))
    rows = [row for part in parts for batch in read_foreign_slice(part, COLUMNS) for row in batch.to_pylist()]
    assert rows == one.expected()
    assert KEY not in repr(store.plan(one.stream)) + repr(store.directory(one.stream))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CASES)
def test_an_encrypted_stream_is_refused_by_name_without_its_key(case: Callable[[str], Any], name: str) -> None:
    one = case(name)
    store = open_foreign(one.store)
    assert store.streams() == [one.stream]
    for none in (store, open_foreign(one.store, encryption_key="")):
        with pytest.raises(UnsupportedVersionError, match=rf"{one.stream} is encrypted .*option encryptionKey"):
            none.plan(one.stream)
    with pytest.raises(CorruptionError, match=r"meta.key: no encryption key opens it"):
        open_foreign(one.store, encryption_key="fixture-key-not-secreT").plan(one.stream)


def test_a_damaged_key_file_of_a_block_costs_that_block(case: Callable[[str], Any], tmp_path: Path) -> None:
    shutil.copytree(case("encrypted-aes").store, tmp_path / "store")
    key = next(tmp_path.rglob("1.key"))
    key.write_bytes(key.read_bytes()[:-1] + b"x")
    first, second = open_foreign(tmp_path, encryption_key=KEY).plan("AES")
    with pytest.raises(DataLossError, match=r"1.key: no encryption key opens it"):
        list(read_foreign_slice(first, COLUMNS))
    assert sum(batch.num_rows for batch in read_foreign_slice(second, COLUMNS)) == second.row_count


def test_a_damaged_key_file_of_the_stream_leaves_its_messages_readable(
    case: Callable[[str], Any], tmp_path: Path
) -> None:
    shutil.copytree(case("encrypted-aes").store, tmp_path / "store")
    next(tmp_path.rglob("meta.key")).write_bytes(bytes(64))
    store = open_foreign(tmp_path, encryption_key=KEY)
    parts = store.plan("AES")
    rows = [row for part in parts for batch in read_foreign_slice(part, COLUMNS) for row in batch.to_pylist()]
    assert rows == case("encrypted-aes").expected()


def test_a_key_does_no_harm_to_plain_streams_and_none_is_taken_for_other_layouts(case: Callable[[str], Any]) -> None:
    one = case("consumers")
    (part,) = open_foreign(one.store, encryption_key=KEY).plan(one.stream)
    assert next(read_foreign_slice(part, ["sequence"])).num_rows == 60
    with pytest.raises(ValueError, match="encryption_key: layout=stan"):
        open_foreign(one.store, "stan", encryption_key=KEY)
