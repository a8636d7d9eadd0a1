"""Rescue from Python: the nodes of a broken JetStream cluster opened, compared, drawn and imported."""

from pathlib import Path

import pytest

from pyspark_jstream import Store, errors, rescue

NODES = [Path(__file__).parents[1] / "data" / "nats-orders" / "store" / name for name in ("n1", "n2", "n3")]
STAN = sorted((Path(__file__).parents[1] / "data" / "stan").iterdir())


def test_nodes_are_compared_drawn_and_imported(tmp_path: Path) -> None:
    nodes = rescue.open(NODES)
    drift = rescue.compare(nodes, "ORDERS")
    assert not drift.agrees
    rescue.picture(drift).save(tmp_path / "drift.html")
    page = (tmp_path / "drift.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "<svg" in page
    assert rescue.picture([drift])._repr_html_().startswith("<svg")
    assert f"Stream ORDERS: {drift.verdict()}" in drift._repr_html_()
    with pytest.raises(ValueError, match=r"drift\.png"):
        rescue.picture(drift).save(tmp_path / "drift.png")

    with Store.create([tmp_path / name for name in "abc"]) as store:
        report = rescue.import_streams(store, nodes, "ORDERS")
        assert len(report["streams"]) == 1 and "<td>6,011</td>" in report._repr_html_()
        message_count = store.stream("ORDERS").state().message_count
        assert message_count == 6011
        rescue.import_streams(store, nodes, "ORDERS")
        assert store.stream("ORDERS").state().message_count == message_count
        assert rescue.compare(store, "ORDERS").agrees


def test_the_layout_is_recognised_unless_it_is_given(tmp_path: Path) -> None:
    assert rescue.open(NODES[:1]).layout == "nats"
    found = [path for path in STAN if path.is_dir()]
    assert found and rescue.open(found[0]).layout == "stan"
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotAStoreError):
        rescue.open(tmp_path / "empty")
    with pytest.raises(ValueError, match="layout 'kafka'"):
        rescue.open(NODES, "kafka")


def test_streams_that_are_not_there_are_named(tmp_path: Path) -> None:
    nodes = rescue.open(NODES)
    with Store.create(tmp_path / "shop") as store, pytest.raises(errors.NotFoundError, match="NONE"):
        rescue.import_streams(store, nodes, ["NONE"])


def test_paths_are_opened_first(tmp_path: Path) -> None:
    with Store.create(tmp_path / "shop") as store:
        for call in (
            lambda: rescue.compare("n1", "ORDERS"),  # type: ignore[arg-type]
            lambda: rescue.import_streams(store, ["n1", "n2"]),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match=r"rescue\.open"):
                call()
        with pytest.raises(ValueError, match=r"Store\.open"):
            rescue.import_streams("shop", store)  # type: ignore[arg-type]
