"""`jstream init`: what it writes, and what it leaves alone."""

from pathlib import Path

from spark_stream.cli.init import templates


def test_init_writes_the_templates_and_prints_where_they_are(jstream, tmp_path: Path) -> None:
    place = tmp_path / "a project"
    outcome = jstream("init", place, with_store=False)
    assert outcome.code == 0, outcome
    written = sorted(path for path in place.rglob("*") if path.is_file())
    assert sorted(outcome.out.splitlines()) == [str(path) for path in written]
    assert len(written) == len(templates()) >= 5
    assert "files written; begin with: jstream apply" in outcome.err


def test_init_leaves_what_is_there_alone(jstream, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    mine = tmp_path / "conf" / "streams.toml"
    mine.write_text("mine")
    outcome = jstream("init", tmp_path, with_store=False)
    assert outcome.code == 1
    assert f"{mine}: there already; nothing was written" in outcome.err
    assert mine.read_text() == "mine" and not (tmp_path / "conf" / "pipelines").exists()


def test_what_init_wrote_can_be_applied(jstream, tmp_path: Path) -> None:
    jstream.done("init", tmp_path)
    jstream.done("apply", tmp_path / "conf" / "streams.toml", "--execute")
    assert jstream.done("stream", "ls", "--names").split() == ["ORDERS", "ORDERS_DEAD"]
