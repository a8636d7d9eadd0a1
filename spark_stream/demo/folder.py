"""The demo's folder: broken nodes of a JetStream cluster, a store on three volumes, and a pipeline that reads it.

nodes/n1, n2, n3        what the cluster's servers left behind; tests/data/nats-orders says how each one is broken
store/disk-1, -2, -3    the volumes of a store of ours
jstream.toml            names these volumes, for commands that run in the folder
orders.toml             the pipeline: orders out of the store into a table
"""

import tarfile
from importlib import resources
from pathlib import Path

from storage_core import Store

STREAM, LETTERS = "ORDERS", "ORDERS_DEAD"
NODES = ("n1", "n2", "n3")
DISKS = ("disk-1", "disk-2", "disk-3")
ARCHIVE = "nodes.tar.xz"  # made by tests/data/nats-orders/generate.py
PIPELINE = "orders.toml"


def make_folder(place: Path, kind: str) -> dict[str, int]:
    """Make the whole folder, which is empty or not there yet, with everything that can be rescued in the store.

    `kind` of the pipeline's table: `delta` or `parquet`. Return what the import says of the stream.
    """
    from spark_stream import rescue

    nodes = unpack_nodes(place)
    with Store.create(volumes(place)) as store:
        (imported,) = rescue.import_streams(store, rescue.open(nodes), streams=STREAM)["streams"]
        store.add_stream({"name": LETTERS})
    write_settings(place, kind)
    return {name: imported[name] for name in ("messages", "holes", "lost")}


def unpack_nodes(place: Path) -> list[Path]:
    """Write the nodes into the folder; return their directories."""
    with resources.files("spark_stream.demo").joinpath(ARCHIVE).open("rb") as archive:
        with tarfile.open(fileobj=archive, mode="r:xz") as members:
            for member in members:
                content = members.extractfile(member)
                assert content is not None, member.name  # it holds regular files only
                target = place / "nodes" / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    return nodes(place)


def write_settings(place: Path, kind: str) -> None:
    """Write the pipeline, whose table is of this kind, and the file that names the store."""
    pipeline = resources.files("spark_stream.demo").joinpath(PIPELINE).read_text("utf-8")
    (place / PIPELINE).write_text(pipeline.replace('kind = "delta"', f'kind = "{kind}"'), "utf-8")
    named = ", ".join(f'"{path.relative_to(place)}"' for path in volumes(place))
    (place / "jstream.toml").write_text(f"store = [{named}]\n", "utf-8")


def nodes(place: Path) -> list[Path]:
    return [place / "nodes" / name for name in NODES]


def volumes(place: Path) -> list[Path]:
    return [place / "store" / name for name in DISKS]
