"""Paths as people write them."""

import os
from pathlib import Path

import pytest

from storage_core.paths import OBJECT_SCHEMES, labels_of, local_path, resolve_paths, store_label, volume_labels


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("/a/b", "/a/b"),
        ("/a/../b/", "/b"),
        ("file:///a b,c", "/a b,c"),
        ("FILE:/a", "/a"),
        ("file:/a", "/a"),
        ("/a/file:/b", "/a/file:/b"),
        ("/a:/b", "/a:/b"),
    ],
)
def test_paths_and_file_uris_become_absolute(given: str, found: str) -> None:
    assert local_path(given, "path") == found


def test_relative_paths_and_homes_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert local_path("shop", "path") == os.path.join(os.getcwd(), "shop")
    assert local_path("~/shop", "path") == "/home/ada/shop"


def test_folders_with_the_names_of_schemes_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_paths(list(OBJECT_SCHEMES)) == [Path.cwd() / name for name in OBJECT_SCHEMES]
    assert [str(path) for path in resolve_paths("s3a://bucket/a,s3://bucket/b")] == ["s3://bucket/a", "s3://bucket/b"]


@pytest.mark.parametrize(
    "given",
    [
        "s3a://KEY:a-secret@bucket/shop",
        "s3://a-secret@bucket/shop",
        "gs://a-secret@bucket/shop",
        "abfss://container:a-secret@account.dfs.core.windows.net/shop",
        "az://container/shop?sig=a-secret",
        "s3://bucket:9000/shop",
    ],
)
def test_addresses_with_what_may_be_a_secret_are_refused_without_showing_it(given: str) -> None:
    with pytest.raises(ValueError, match="storage options") as caught:
        resolve_paths(given)
    assert "secret" not in str(caught.value)


def test_addresses_without_a_bucket_are_refused() -> None:
    for given in ("s3://", "s3:///shop"):
        with pytest.raises(ValueError, match="names no bucket"):
            resolve_paths(given)
    (path,) = resolve_paths("abfss://container@account.dfs.core.windows.net/shop")
    assert str(path) == "abfss://container@account.dfs.core.windows.net/shop"


@pytest.mark.parametrize("given", ["s3://bucket/shop", "hdfs://host:9000/shop", "s3:/bucket/shop"])
def test_what_lies_elsewhere_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=f"path: '{given}' is not a local path"):
        local_path(given, "path")


@pytest.mark.parametrize("given", ["s3://", "az:///"])
def test_an_address_names_a_bucket(given: str) -> None:
    with pytest.raises(ValueError, match=f"path: '{given}' names no bucket"):
        resolve_paths([given])


def test_a_nul_character_is_refused() -> None:
    with pytest.raises(ValueError, match=r"path: '/a\\x00b' holds a NUL character"):
        local_path("/a\0b", "path")


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["/a/n1/jetstream/S", "/a/n2/jetstream/S"], ["n1", "n2"]),
        (["/a/n1", "/a/n2/deep"], ["n1", "n2/deep"]),
        (["/a/n1", "/b/n1"], ["a", "b"]),
        (["/mnt/disk-1/shop", "/mnt/disk-2/shop", "/srv/shop"], ["mnt/disk-1", "mnt/disk-2", "srv"]),
        (["/a", "/a/b"], ["a", "b"]),
        (["/data/only"], ["only"]),
        ([], []),
    ],
)
def test_copies_are_called_by_what_tells_their_paths_apart(paths: list[str], labels: list[str]) -> None:
    assert labels_of(paths) == labels


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (["/data/shop"], "shop"),
        (["/data/1/shop", "/data/2/shop", "/data/3/shop"], "shop"),
        (["/data/shop/disk-1", "/data/shop/disk-2", "/data/shop/disk-3"], "shop"),
        (["s3://a/shop", "s3://b/shop", "s3://c/shop"], "shop"),
        (["s3://a", "s3://b", "s3://c"], "a,b,c"),
        (["/a", "/b", "/c"], "a,b,c"),
    ],
)
def test_a_store_is_called_by_what_its_volumes_share(paths: list[str], label: str) -> None:
    assert store_label(paths) == label


def test_two_volumes_at_one_path_are_told_apart_by_their_ids() -> None:
    labels = volume_labels({"aaaaaaaa00": "/a/disk-1", "bbbbbbbb00": "/a/disk-2", "cccccccc00": "/a/disk-2"})
    assert list(labels.values()) == ["disk-1", "disk-2 (bbbbbbbb)", "disk-2 (cccccccc)"]
