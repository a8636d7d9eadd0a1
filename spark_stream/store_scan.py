"""One look at a whole store: the JSON of `cluster info`, `stream report` and `consumer report`, all of one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_stream.disks import DiskSpace, space_of
from storage_core import Store
from storage_core.metadata.state import StoreState
from storage_core.paths import store_label, volume_labels
from storage_core.store.consumers.lag import consumer_report
from storage_core.store.describe import by_name, cluster_info, stream_cluster, stream_summary
from storage_core.store.replicas.replicas import Survey


@dataclass(frozen=True, slots=True)
class Scan:
    time_ns: int
    survey: Survey
    cluster: Mapping[str, Any]  # as `cluster info --json`
    streams: Sequence[Mapping[str, Any]]  # as `stream report --json`, by name; each replica has its `label` too
    consumers: Sequence[Mapping[str, Any]]  # as `consumer report --json`
    label: str  # what people call the store
    labels: Mapping[str, str]  # what people call volumes, by their names
    spaces: Mapping[str, DiskSpace]  # of the disks of volumes, by their names; without those that cannot be read
    number: int = 0  # for who looks again and again: grows when something is different

    @property
    def state(self) -> StoreState:
        return self.survey.view.state


def scan_of(store: Store) -> Scan:
    """Look at the store. Takes no lock, writes nothing, and reads blocks for the lag of consumers alone."""
    survey = store.survey()
    state = survey.view.state
    cluster = cluster_info(survey)
    paths = {volume["name"]: str(volume["path"]) for volume in cluster["volumes"]}
    labels = volume_labels(paths)
    spaces = {name: space_of(path) for name, path in paths.items()}
    return Scan(
        time_ns=store.environment.now_ns(),
        survey=survey,
        cluster=cluster,
        streams=[
            {**stream_summary(stream), "cluster": _labelled(stream_cluster(survey, stream), labels)}
            for stream in by_name(state)
        ],
        consumers=consumer_report(store, state=state),
        label=store_label(list(paths.values())),
        labels=labels,
        spaces={name: space for name, space in spaces.items() if space is not None},
    )


def _labelled(cluster: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the `cluster` of a stream, with what people call the volumes."""
    replicas = [
        {**replica, "label": labels.get(replica["name"], replica["name"][:8])} for replica in cluster["replicas"]
    ]
    return {**cluster, "replicas": replicas}
