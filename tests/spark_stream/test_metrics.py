"""Metrics of stores for Prometheus: as text, as a file, over HTTP."""

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from spark_stream.metrics import (
    METRICS,
    MaintenanceCollector,
    MetricsServer,
    StoreCollector,
    exposition,
    write_textfile,
)
from storage_core import Store
from storage_core.paths import store_label

Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three volumes; ORDERS has 5 messages, of which the consumer `billing` has acknowledged 2 and got 3."""
    made = Store.create([tmp_path / letter for letter in "abc"])
    made.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    made.stream("ORDERS").append(pa.table({"subject": ["orders.new"] * 5, "data": [str(at) for at in range(5)]}))
    consumer = made.stream("ORDERS").add_consumer({"name": "billing"})
    consumer.fetch(3, 0)
    consumer.ack([1, 2])
    return made


def parsed(text: str) -> Found:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(*stores: object) -> Found:
    return parsed(exposition([StoreCollector(stores)]))  # type: ignore[arg-type]


def value(found: Found, name: str, **labels: str) -> float:
    """Return the one sample of a metric that has these labels."""
    (one,) = [value for (other, has), value in found.items() if other == name and labels.items() <= dict(has).items()]
    return one


def test_streams_and_consumers_are_as_their_info_says(store: Store) -> None:
    found = scraped(store.paths)
    stream = {"stream": "ORDERS", "store": store_label(store.paths)}
    assert value(found, "jstream_stream_first_sequence", **stream) == 1
    assert value(found, "jstream_stream_last_sequence", **stream) == 5
    assert value(found, "jstream_stream_messages", **stream) == 5
    assert value(found, "jstream_stream_bytes", **stream) == store.stream("ORDERS").info()["state"]["bytes"]
    assert value(found, "jstream_stream_lost_messages", **stream) == 0
    consumer = {**stream, "consumer": "billing"}
    assert value(found, "jstream_consumer_delivered_sequence", **consumer) == 3
    assert value(found, "jstream_consumer_ack_floor", **consumer) == 2
    assert value(found, "jstream_consumer_pending", **consumer) == 2
    assert value(found, "jstream_consumer_ack_pending", **consumer) == 1
    assert value(found, "jstream_consumer_lag_messages", **consumer) == 3
    assert value(found, "jstream_consumer_lag_seconds", **consumer) > 0
    assert value(found, "jstream_consumer_paused", **consumer) == 0
    assert value(found, "jstream_consumer_problem", **consumer) == 0
    assert value(found, "jstream_up") == 1


def test_one_volume_leads_and_every_copy_is_in_one_state(store: Store) -> None:
    store.scrub()
    found = scraped(store.paths)
    cluster = store.cluster_info()
    for volume in cluster["volumes"]:
        name = Path(volume["path"]).name
        assert value(found, "jstream_leader", volume=name) == (volume["name"] == cluster["leader"])
        assert value(found, "jstream_volume_state", volume=name, state="current") == 1
        assert value(found, "jstream_volume_state", volume=name, state="damaged") == 0
        assert value(found, "jstream_volume_bytes", volume=name) == volume["bytes"]
        assert value(found, "jstream_replica_state", volume=name, stream="ORDERS", state="current") == 1
        assert value(found, "jstream_replica_lag", volume=name) == 0
        assert value(found, "jstream_replica_last_scrub_timestamp_seconds", volume=name) > 1.7e9
    assert value(found, "jstream_term") == cluster["term"]
    assert value(found, "jstream_index") == cluster["index"]


def test_a_store_has_its_name_and_no_id_but_in_jstream_info(store: Store) -> None:
    text = exposition([StoreCollector([store.paths[1]])])  # any volume leads to the name
    ids = [store.id.hex(), *(volume["name"] for volume in store.cluster_info()["volumes"])]
    named = [line for line in text.splitlines() if any(word in line for word in ids)]
    assert named == [f'jstream_info{{id="{store.id.hex()}",store="{Path(store.paths[0]).parent.name}"}} 1.0']


def test_stores_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    places = [tmp_path / town / "shop" for town in ("rome", "oslo")]
    for place in places:
        place.parent.mkdir()
        Store.create(place).close()
    found = scraped(*places)
    assert [value(found, "jstream_term", store=str(place)) for place in places] == [1, 1]


def test_damaged_copy_is_seen_at_the_next_look(store: Store) -> None:
    collector = StoreCollector([store.paths])
    name = Path(store.paths[1]).name
    assert value(parsed(exposition([collector])), "jstream_replica_missing_blocks", volume=name) == 0
    (block,) = Path(store.paths[1]).rglob("*.blk")
    block.unlink()
    found = parsed(exposition([collector]))
    assert value(found, "jstream_replica_missing_blocks", volume=name) == 1
    assert value(found, "jstream_replica_state", volume=name, state="current") == 0


def test_looking_writes_nothing(store: Store) -> None:
    before = store.view().index, {path: path.stat().st_mtime_ns for one in store.paths for path in Path(one).rglob("*")}
    scraped(store.paths)
    after = store.view().index, {path: path.stat().st_mtime_ns for one in store.paths for path in Path(one).rglob("*")}
    assert after == before


def test_store_that_is_gone_is_down_and_up_again_when_it_is_back(store: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other")
    other.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    collector = StoreCollector([store.paths, tmp_path / "other"])
    parsed(exposition([collector]))
    (tmp_path / "other").rename(tmp_path / "away")
    found = parsed(exposition([collector]))
    assert value(found, "jstream_up", path=str(tmp_path / "other")) == 0
    assert value(found, "jstream_up", path=",".join(store.paths)) == 1
    assert value(found, "jstream_stream_messages", stream="ORDERS") == 5
    (tmp_path / "away").rename(tmp_path / "other")
    found = parsed(exposition([collector]))
    assert value(found, "jstream_up", path=str(tmp_path / "other")) == 1
    assert value(found, "jstream_stream_messages", store="other", stream="ORDERS") == 0


def test_every_metric_is_described_and_none_is_missing(store: Store) -> None:
    store.scrub()
    shutil.rmtree(store.paths[2])  # else there is no problem
    text = exposition([StoreCollector([store.paths])])
    names = {family.name for family in text_string_to_metric_families(text)}
    assert names == set(METRICS)
    assert all(f"# HELP {name} {meaning}" in text for name, (_, meaning) in METRICS.items())


def test_a_volume_that_is_away_is_one_problem(store: Store) -> None:
    shutil.rmtree(store.paths[2])
    families = text_string_to_metric_families(exposition([StoreCollector([store.paths])]))
    (family,) = [family for family in families if family.name == "jstream_problem"]
    (sample,) = family.samples
    assert {key: value for key, value in sample.labels.items() if key != "store"} == {
        "level": "warning",
        "kind": "volume",
        "subject": f"volume {Path(store.paths[2]).name}",
        "command": "jstream repair",
    }


def test_what_is_on_the_disks_is_told_by_kind_and_follows_a_purge(store: Store) -> None:
    def sizes(kind: str) -> list[float]:
        found = scraped(store.paths)
        names = [Path(path).name for path in store.paths]
        return [value(found, "jstream_volume_disk_bytes", volume=name, kind=kind) for name in names]

    def on_disk(folder: str) -> list[int]:
        roots = [Path(path) / folder for path in store.paths]
        return [sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) for root in roots]

    blocks = [sum(path.stat().st_size for path in Path(one).rglob("*.blk")) for one in store.paths]
    assert sizes("live") == blocks and min(blocks) > 0
    assert sizes("pending_delete") == [0, 0, 0]
    assert sizes("metadata") == on_disk("meta")
    assert store.cluster_info()["pending_deletes"] == {"blocks": 0, "freed_from": None, "freed_by": None}
    store.stream("ORDERS").purge()
    assert (sizes("live"), sizes("pending_delete")) == ([0, 0, 0], blocks)
    told = store.cluster_info()["pending_deletes"]
    assert told["blocks"] == 1 and told["freed_from"] == told["freed_by"] > store.info()["created"]


QUERIED = re.compile(r"(jstream_\w+)(\{[^}]*\})?")
CONF = Path(__file__).resolve().parents[2] / "conf"


def test_dashboards_and_alerts_ask_for_metrics_and_labels_that_are_there(store: Store) -> None:
    promql_parser = pytest.importorskip("promql_parser", reason="the package promql-parser is not installed")
    store.scrub()
    shutil.rmtree(store.paths[2])  # else there is no problem
    with Store.open(store.paths) as opened:
        text = exposition([StoreCollector([store.paths]), MaintenanceCollector(opened, True, 1.0)])
    labels = {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples
    }
    panels = json.loads((CONF / "grafana" / "jstream.json").read_text())["panels"]
    asked = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    (group,) = yaml.safe_load((CONF / "prometheus" / "jstream.yml").read_text())["groups"]
    asked += [(rule["expr"], "".join(rule["annotations"].values())) for rule in group["rules"]]
    assert len(asked) >= 20
    for expression, words in asked:
        promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("$__range", "1h"))
        queried = QUERIED.findall(expression)
        assert queried, expression
        shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*[}|]", words))
        grouped = {
            name.strip() for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for name in part.split(",")
        }
        for name, matchers in queried:
            wanted = shown | grouped | set(re.findall(r"(\w+)(?:=~|!=|=)", matchers))
            assert wanted <= labels[name], (expression, name, wanted - labels[name])


def test_file_is_replaced_as_a_whole(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "jstream.prom"
    for count in (5, 6):
        write_textfile([StoreCollector([store.paths])], file)
        assert value(parsed(file.read_text()), "jstream_stream_last_sequence") == count
        store.stream("ORDERS").publish("orders.new", b"x")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == [file]


@pytest.fixture
def server(store: Store) -> Iterator[MetricsServer]:
    with MetricsServer([StoreCollector([store.paths])], port=0) as made:
        yield made


def test_each_request_looks_anew(store: Store, server: MetricsServer) -> None:
    for last in (5, 6):
        with urllib.request.urlopen(server.url) as answer:
            assert value(parsed(answer.read().decode()), "jstream_stream_last_sequence") == last
        store.stream("ORDERS").publish("orders.new", b"x")


def test_port_that_is_taken_is_named(server: MetricsServer, store: Store) -> None:
    with pytest.raises(OSError, match=f"metrics cannot be served on 127.0.0.1:{server.port}"):
        MetricsServer([StoreCollector([store.paths])], port=server.port)


@pytest.mark.parametrize("stores", [[], [[]]])
def test_no_store_is_an_error(stores: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="metrics are of one store at least"):
        StoreCollector(stores)
