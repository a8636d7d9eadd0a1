"""Where processes of one user find the stores of each other's queries."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from datasource import known_stores

STORE = bytes(range(16))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of its own, in which nothing was noted."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(known_stores, "_remembered", {})
    return tmp_path / f"jstream-{os.getuid()}"


def test_paths_are_found_as_they_were_noted_last(folder: Path) -> None:
    assert known_stores.find(STORE) == ()
    known_stores.remember(STORE, ["/disk a/one", "/disk,b/two"])
    assert known_stores.find(STORE) == ("/disk a/one", "/disk,b/two")
    known_stores.remember(STORE, ["s3://bucket/shop", "s3://other/shop"])
    assert known_stores.find(STORE) == ("s3://bucket/shop", "s3://other/shop")
    known_stores.remember(STORE, ["/elsewhere"])
    assert known_stores.find(STORE) == ("/elsewhere",)
    assert known_stores.find(bytes(16)) == ()
    assert [path.name for path in (folder / "stores").iterdir()] == [f"{STORE.hex()}.json"]
    assert [one.stat().st_mode & 0o777 for one in (folder, folder / "stores")] == [0o700] * 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paths": "/a"}', '{"paths": ["relative"]}', '{"paths": [1]}'])
def test_note_that_is_no_note_is_not_believed(folder: Path, text: str) -> None:
    known_stores.remember(STORE, ["/a"])
    (folder / "stores" / f"{STORE.hex()}.json").write_text(text)
    assert known_stores.find(STORE) == ()


def test_folder_that_others_can_use_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    known_stores.remember(STORE, ["/a"])
    (folder / "stores").chmod(0o755)
    assert known_stores.find(STORE) == ()
    with caplog.at_level(logging.WARNING, "jstream"):
        known_stores.remember(STORE, ["/b"])
    assert "is not a folder that this user alone can use" in caplog.text


def test_folder_behind_a_link_is_not_used(folder: Path, tmp_path: Path) -> None:
    known_stores.remember(STORE, ["/a"])
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert known_stores.find(STORE) == ()


def test_what_a_killed_process_left_is_in_nobodys_way(folder: Path) -> None:
    known_stores.remember(STORE, ["/a"])
    (folder / "stores" / f"{STORE.hex()}.json.{os.getpid()}").write_text("half")
    known_stores.remember(STORE, ["/b"])
    assert known_stores.find(STORE) == ("/b",)
