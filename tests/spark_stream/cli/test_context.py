"""Stores that no word of the command line names: contexts, and jstream.toml in the folder."""

import json
from pathlib import Path

import pytest

from storage_core import Store


def names(jstream, *words: object) -> str:
    """Return the streams of the store that a command without --store and JSTREAM_STORE works on."""
    outcome = jstream(*words, "stream", "ls", "--names", with_store=False)
    assert outcome.code == 0, outcome
    return outcome.out.strip()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another store, with a stream OTHER."""
    with Store.create(tmp_path / "other") as store:
        store.add_stream({"name": "OTHER"})
    return tmp_path / "other"


def test_a_selected_context_is_used_until_another_one_is(jstream, orders, other: Path) -> None:
    jstream.done("context", "add", "shop", jstream.volume)
    jstream.done("context", "add", "elsewhere", other, "--select")
    assert names(jstream) == "OTHER"
    jstream.done("context", "select", "shop")
    assert names(jstream) == "ORDERS"
    listed = json.loads(jstream.done("context", "ls", "--json"))
    assert listed == [
        {"name": "elsewhere", "selected": False, "volumes": [str(other)]},
        {"name": "shop", "selected": True, "volumes": [str(jstream.volume)]},
    ]


def test_a_context_is_added_by_relative_paths_and_used_from_anywhere(
    jstream, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jstream.done("context", "add", "shop", "other", "--select")
    monkeypatch.chdir("/")
    assert names(jstream) == "OTHER"


def test_a_context_is_used_once_by_its_name_with_a_mark(jstream, orders, other: Path) -> None:
    jstream.done("context", "add", "elsewhere", other)
    assert names(jstream, "--store", "@elsewhere") == "OTHER"
    assert jstream.done("stream", "ls", "--names", "--store", "@elsewhere") == "OTHER\n"
    assert jstream.done("stream", "ls", "--names") == "ORDERS\n"


def test_the_nearest_name_of_a_store_counts(
    jstream, orders, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jstream.done("context", "add", "elsewhere", tmp_path / "nowhere", "--select")
    (tmp_path / "jstream.toml").write_text('store = ["other"]\n')
    assert names(jstream) == "OTHER"
    assert jstream.done("stream", "ls", "--names") == "ORDERS\n"  # by the variable
    assert jstream.done("stream", "ls", "--names", "--store", other) == "OTHER\n"


def test_a_context_that_is_replaced_or_names_nothing_yet_says_so(jstream, other: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    added = jstream("context", "add", "shop", nowhere).err
    assert added.startswith("context shop was added; ") and added.endswith(f"is there yet: {nowhere}\n")
    assert jstream("context", "add", "shop", other).err == "context shop was replaced; use it with --store @shop\n"


def test_a_file_in_the_folder_may_name_a_context(
    jstream, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jstream.done("context", "add", "elsewhere", other)
    (tmp_path / "jstream.toml").write_text('store = "@elsewhere"\n')
    assert names(jstream) == "OTHER"
    (tmp_path / "jstream.toml").write_text('store = "@elsewere"\n')
    assert "no context 'elsewere'; did you mean 'elsewhere'?" in jstream("stream", "ls", with_store=False).err


def test_selecting_says_what_counts_before_it(jstream, other: Path) -> None:
    outcome = jstream("context", "add", "elsewhere", other, "--select")
    assert outcome.code == 0
    assert "warning: JSTREAM_STORE names another store" in outcome.err
    assert "warning" not in jstream("context", "select", "elsewhere", with_store=False).err


@pytest.mark.parametrize("content", ['store = "other"', 'store = ["${PLACE:-other}"]'])
def test_a_file_in_the_folder_names_the_store(
    jstream, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jstream.toml").write_text(content)
    assert names(jstream) == "OTHER"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "names no volumes"),
        ("store = 7", "names no volumes"),
        ('store = ["disk-1", ""]', "names no volumes"),
        ('stor = "other"', "stor"),
        ("store = ", "not TOML"),
    ],
)
def test_a_file_that_names_no_store_is_told_by_its_name(
    jstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jstream.toml").write_text(content)
    outcome = jstream("stream", "ls", with_store=False)
    assert outcome.code == 2
    assert "jstream.toml" in outcome.err and said in outcome.err


def test_a_removed_context_is_no_longer_selected_and_its_store_stays(jstream, other: Path) -> None:
    jstream.done("context", "add", "shop", other, "--select")
    jstream.done("context", "rm", "shop")
    assert "no store" in jstream("stream", "ls", with_store=False).err
    assert jstream("stream", "ls", "--store", other).code == 0


@pytest.mark.parametrize("words", [["select", "shp"], ["rm", "shp"]])
def test_an_unknown_context_is_wrong_usage_with_the_nearest(jstream, words: list[str]) -> None:
    jstream.done("context", "add", "shop", jstream.volume)
    outcome = jstream("context", *words)
    assert outcome.code == 2
    assert "did you mean 'shop'?" in outcome.err
    assert jstream("stream", "ls", "--store", "@shp").code == 2


@pytest.mark.parametrize("name", ["", "@shop", "a b", "-x", "a/b"])
def test_a_name_that_no_shell_takes_is_refused(jstream, name: str) -> None:
    assert jstream("context", "add", "--", name, jstream.volume).code == 2
    assert json.loads(jstream.done("context", "ls", "--json")) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"selected": "x", "contexts": {}}', '{"selected": [], "contexts": {}}']
)
def test_a_file_of_contexts_that_is_none_is_told_by_its_name(jstream, tmp_path: Path, content: str) -> None:
    file = tmp_path / "settings" / "jstream" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    outcome = jstream("context", "ls")
    assert outcome.code == 1
    assert str(file) in outcome.err
    assert jstream("store", "info").code == 0  # whose words name a store


def test_a_pipeline_and_definitions_use_the_context(jstream, orders, tmp_path: Path) -> None:
    jstream.done("context", "add", "shop", jstream.volume, "--select")
    file = tmp_path / "streams.toml"
    file.write_text("[streams.ORDERS]\n")
    assert jstream("apply", file, with_store=False).code == 0
    assert jstream("apply", file, "--store", "@shop", with_store=False).code == 0
