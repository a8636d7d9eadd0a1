"""Metrics of stores for Prometheus: looked up when they are asked for, served over HTTP or written as a file.

The names and labels are below, METRICS; what is missing or unknown is left out, never written as a zero. Every store
has `jstream_up`: 0 if it could not be read, and then nothing else of it is there.

Needs `prometheus-client`: pip install 'pyspark-jstream[metrics]'. Needs no Spark.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server, write_to_textfile
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "metrics need the package prometheus-client: pip install 'pyspark-jstream[metrics]'", name=error.name
    ) from error

from spark_stream.check import Limits, command_line, problems_of
from spark_stream.store_scan import Scan, scan_of
from storage_core import Store
from storage_core.errors import StorageError
from storage_core.paths import store_label
from storage_core.store.replicas.replicas import STATES

log = logging.getLogger("jstream")
PORT = 9464  # of exporters of applications; Source: the port allocations of the Prometheus wiki
ADDRESS = "127.0.0.1"

_STREAM = ("store", "stream")
_REPLICA = ("store", "stream", "volume")
_CONSUMER = ("store", "stream", "consumer")
METRICS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "jstream_up": (("path",), "Whether the store could be read"),
    "jstream_problem": (
        ("store", "level", "kind", "subject", "command"),
        "A problem that `jstream check` reports: always 1; `command` repairs it or says more",
    ),
    "jstream_info": (("store", "id"), "Always 1; the id of a store, by the name that the other metrics have"),
    "jstream_term": (("store",), "Term of the metadata log"),
    "jstream_index": (("store",), "Last index of the metadata log that is committed"),
    "jstream_leader": (("store", "volume", "path"), "Whether the volume led last: 1 for one volume of a store"),
    "jstream_volume_state": (("store", "volume", "path", "state"), "State of a volume: 1 for the one it is in"),
    "jstream_volume_bytes": (("store", "volume", "path"), "Size of the block files on a volume"),
    "jstream_volume_disk_bytes": (
        ("store", "volume", "path", "kind"),
        "Bytes that a volume stores: live, pending_delete, metadata",
    ),
    "jstream_volume_free_bytes": (("store", "volume", "path"), "Free space of the disk that a volume is on"),
    "jstream_volume_size_bytes": (("store", "volume", "path"), "Size of the disk that a volume is on"),
    "jstream_pending_delete_blocks": (("store",), "Blocks that were removed and are not unlinked yet"),
    "jstream_stream_first_sequence": (_STREAM, "First sequence of the stream"),
    "jstream_stream_last_sequence": (_STREAM, "Last sequence of the stream"),
    "jstream_stream_messages": (_STREAM, "Messages of the stream"),
    "jstream_stream_bytes": (_STREAM, "Bytes of their subjects, headers and data, before compression, of one copy"),
    "jstream_stream_duplicates": (_STREAM, "Messages that were not stored again, since their msg_id was known"),
    "jstream_stream_lost_messages": (_STREAM, "Sequences that are recorded as lost"),
    "jstream_replica_state": ((*_REPLICA, "state"), "State of a copy of the stream: 1 for the one it is in"),
    "jstream_replica_lag": (_REPLICA, "Entries of the log that the copy is behind"),
    "jstream_replica_damaged_blocks": (_REPLICA, "Blocks of the copy that are known to be damaged"),
    "jstream_replica_missing_blocks": (_REPLICA, "Blocks that the copy lacks"),
    "jstream_replica_last_scrub_timestamp_seconds": (_REPLICA, "When all of the copy had been read and checked"),
    "jstream_consumer_delivered_sequence": (_CONSUMER, "Last sequence that was handed out"),
    "jstream_consumer_ack_floor": (_CONSUMER, "Sequence up to which everything is acknowledged"),
    "jstream_consumer_pending": (_CONSUMER, "Messages not delivered yet"),
    "jstream_consumer_ack_pending": (_CONSUMER, "Messages that were handed out and wait for their acknowledgement"),
    "jstream_consumer_redelivered": (_CONSUMER, "Messages of these that were handed out more than once"),
    "jstream_consumer_skipped": (_CONSUMER, "Messages that were removed or lost before they were acknowledged"),
    "jstream_consumer_unreadable": (_CONSUMER, "Messages that wait since no copy of them can be read now"),
    "jstream_consumer_lag_messages": (_CONSUMER, "Messages that are there and not acknowledged"),
    "jstream_consumer_lag_seconds": (_CONSUMER, "Age of the oldest of them; 0 if there is none"),
    "jstream_consumer_paused": (_CONSUMER, "Whether the consumer is paused"),
    "jstream_consumer_problem": (_CONSUMER, "Whether the consumer is stopped until somebody resets it"),
}

MAINTENANCE_METRICS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "jstream_maintain_last_run_success": (("store",), "Whether the round was completed, and every volume is current"),
    "jstream_maintain_last_run_end_timestamp_seconds": (("store",), "When it ended"),
    "jstream_maintain_last_run_duration_seconds": (("store",), "How long it took"),
}


class Families:
    """Metrics by name as they are gathered; each name once, with all its samples."""

    def __init__(self, metrics: Mapping[str, tuple[tuple[str, ...], str]] = METRICS) -> None:
        self._metrics = metrics
        self._families: dict[str, GaugeMetricFamily] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        names, meaning = self._metrics[name]
        assert len(labels) == len(names), (name, labels)
        if name not in self._families:
            self._families[name] = GaugeMetricFamily(name, meaning, labels=names)
        self._families[name].add_metric(labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class StoreCollector(Collector):
    """Reads stores when it is asked, writes nothing and takes no lock. `stores`: for each store its path or paths."""

    def __init__(
        self,
        stores: Iterable[str | Path | Sequence[str | Path]],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._stores = [
            [str(store)] if isinstance(store, (str, Path)) else [str(path) for path in store] for store in stores
        ]
        if not self._stores or not all(self._stores):
            raise ValueError("stores: metrics are of one store at least, each with a path")
        self._storage_options = storage_options
        self._opened: dict[int, Store] = {}
        self._names: dict[int, str] = {}  # of stores that were read before
        self._asked = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Return what there is to say of all stores; a store that cannot be read is `jstream_up` 0."""
        families = Families()
        with self._asked:
            scans = [self._scan(number) for number in range(len(self._stores))]
            known = list(self._names.values())
            for number, (paths, scan) in enumerate(zip(self._stores, scans, strict=True)):
                place = ",".join(paths)
                families.add("jstream_up", float(scan is not None), place)
                if scan is not None:
                    name = self._names[number]
                    for metric, value, labels in samples_of(scan, name if known.count(name) == 1 else place):
                        families.add(metric, value, *labels)
        return families

    def _scan(self, number: int) -> Scan | None:
        try:
            if number not in self._opened:
                self._opened[number] = Store.open(
                    self._stores[number], read_only=True, storage_options=self._storage_options
                )
            store = self._opened[number]
            scan = scan_of(store)
        except (StorageError, OSError, ValueError) as error:
            self._opened.pop(number, None)
            log.warning("no metrics of %s: %s", ",".join(self._stores[number]), error)
            return None
        self._names[number] = scan.label
        return scan


class MaintenanceCollector(Collector):
    """How one round of maintenance ended."""

    def __init__(self, store: Store, is_done: bool, duration_s: float) -> None:
        self._name = store_label([str(volume.path) for volume in store.volumes()])
        self._is_done, self._duration_s = is_done, duration_s
        self._ended_s = time.time()

    def collect(self) -> Iterable[Metric]:
        families = Families(MAINTENANCE_METRICS)
        families.add("jstream_maintain_last_run_success", float(self._is_done), self._name)
        families.add("jstream_maintain_last_run_end_timestamp_seconds", self._ended_s, self._name)
        families.add("jstream_maintain_last_run_duration_seconds", self._duration_s, self._name)
        return families


Sample = tuple[str, float, tuple[str, ...]]


def samples_of(scan: Scan, name: str) -> Iterator[Sample]:
    """Yield the metrics of a store. `name`: what its label `store` says."""
    yield "jstream_info", 1.0, (name, scan.state.store_id.hex())
    yield from _of_problems(scan, name)
    yield from _of_volumes(scan, name)
    yield from _of_streams(scan, name)
    yield from _of_consumers(scan, name)


def _of_problems(scan: Scan, name: str) -> Iterator[Sample]:
    known = set()
    for problem in problems_of(scan, Limits()):
        level, kind = problem.level.name.lower(), problem.kind
        labels = (name, level, kind, str(problem.about), command_line(problem))
        if labels not in known:
            known.add(labels)
            yield "jstream_problem", 1.0, labels


def _of_volumes(scan: Scan, name: str) -> Iterator[Sample]:
    info = scan.cluster
    yield "jstream_term", info["term"], (name,)
    yield "jstream_index", info["index"], (name,)
    yield "jstream_pending_delete_blocks", info["pending_deletes"]["blocks"], (name,)
    for volume in info["volumes"]:
        labels = (name, scan.labels[volume["name"]], str(volume["path"]))
        yield "jstream_leader", float(volume["name"] == info["leader"]), labels
        if volume["bytes"] is not None:
            yield "jstream_volume_bytes", volume["bytes"], labels
        for kind, size in volume["disk_bytes"].items():
            yield "jstream_volume_disk_bytes", size, (*labels, kind)
        if (space := scan.spaces.get(volume["name"])) is not None:
            yield "jstream_volume_free_bytes", space.free, labels
            yield "jstream_volume_size_bytes", space.size, labels
        for state in STATES:
            yield "jstream_volume_state", float(volume["state"] == state), (*labels, state)


def _of_streams(scan: Scan, name: str) -> Iterator[Sample]:
    for info in scan.streams:
        state, labels = info["state"], (name, str(info["config"]["name"]))
        yield "jstream_stream_first_sequence", state["first_seq"], labels
        yield "jstream_stream_last_sequence", state["last_seq"], labels
        yield "jstream_stream_messages", state["messages"], labels
        yield "jstream_stream_bytes", state["bytes"], labels
        yield "jstream_stream_duplicates", state["num_duplicates"], labels
        yield "jstream_stream_lost_messages", sum(end - first for first, end in state["lost_ranges"]), labels
        for replica in info["cluster"]["replicas"]:
            yield from _of_replica(replica, (*labels, replica["label"]))


def _of_replica(replica: Mapping[str, Any], labels: tuple[str, ...]) -> Iterator[Sample]:
    for state in STATES:
        yield "jstream_replica_state", float(replica["state"] == state), (*labels, state)
    for figure in ("lag", "damaged_blocks", "missing_blocks"):
        if replica[figure] is not None:
            yield f"jstream_replica_{figure}", replica[figure], labels
    if replica["last_scrub"] is not None:
        yield "jstream_replica_last_scrub_timestamp_seconds", _seconds(replica["last_scrub"]), labels


def _of_consumers(scan: Scan, name: str) -> Iterator[Sample]:
    for info in scan.consumers:
        labels = (name, str(info["stream_name"]), str(info["name"]))
        yield "jstream_consumer_delivered_sequence", info["delivered"]["stream_seq"], labels
        yield "jstream_consumer_ack_floor", info["ack_floor"]["stream_seq"], labels
        yield "jstream_consumer_pending", info["num_pending"], labels
        yield "jstream_consumer_ack_pending", info["num_ack_pending"], labels
        yield "jstream_consumer_redelivered", info["num_redelivered"], labels
        yield "jstream_consumer_skipped", info["num_skipped"], labels
        yield "jstream_consumer_unreadable", info["num_unreadable"], labels
        yield "jstream_consumer_lag_messages", info["lag"]["messages"], labels
        yield "jstream_consumer_lag_seconds", info["lag"]["seconds"], labels
        yield "jstream_consumer_paused", float(info["paused"]), labels
        yield "jstream_consumer_problem", float(info["problem"] is not None), labels


def _seconds(time_text: str) -> float:
    """Return seconds since 1970 of RFC 3339 in UTC, to the microsecond."""
    whole, _, fraction = time_text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def registry_of(collectors: Iterable[Collector]) -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        made.register(collector)
    return made


def exposition(collectors: Iterable[Collector]) -> str:
    """Return the metrics as they are now, in the text that Prometheus reads."""
    return generate_latest(registry_of(collectors)).decode()


def write_textfile(collectors: Iterable[Collector], file: str | Path) -> None:
    """Write the metrics as they are now, for the textfile collector of Prometheus' node exporter: whole or not at all.

    Raises OSError.
    """
    write_to_textfile(str(file), registry_of(collectors))


class MetricsServer:
    """Serves metrics over HTTP, from a thread of its own, until it is closed; a context manager."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        port: int = PORT,
        address: str = ADDRESS,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve on this port of the address, on a free one if it is 0. Raises OSError that says which is taken."""
        self._address, self._on_close = address, on_close
        try:
            self._server, self._thread = start_http_server(port, address, registry_of(collectors))
        except OSError as error:
            raise OSError(error.errno, f"metrics cannot be served on {address}:{port}: {error.strerror}") from error

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving; once more does nothing."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._on_close()

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Serve until this thread is interrupted."""
        self._thread.join()
