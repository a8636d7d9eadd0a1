"""What a streaming query does with the store: begin, settle, acknowledge; on 1 and 3 volumes."""

import pytest
from harness.life import to_table
from harness.model import Row
from harness.processes import Machine

from storage_core.errors import DataLossError
from storage_core.metadata.reconcile import CONTINUE, FAIL
from storage_core.store.query import QueryPosition, QueryReader, Start, onward
from storage_core.store.store import Store
from storage_core.store.stream import Stream

ORDERS = {"name": "orders", "subjects": ["orders.>"], "block_max_msgs": 700}
REMEDY = "option failOnDataLoss=false goes on"


def put(stream: Stream, count: int) -> None:
    stream.append(to_table([Row("orders.eu", b"%d" % number) for number in range(count)]))


@pytest.fixture(params=[1, 3])
def machine(request: pytest.FixtureRequest) -> Machine:
    made = Machine(7, request.param)
    put(made.create().add_stream(ORDERS), 10)
    return made


def read_on(store: Store, at: QueryPosition, sequence: int) -> QueryPosition:
    """Return where a query stands that has read everything below `sequence`."""
    return onward(store.stream_state("orders"), at, sequence)


def places(positions: dict[str, QueryPosition]) -> dict[str, int]:
    return {name: one.position.next_sequence for name, one in positions.items()}


# --- where a query begins


def test_first_use_makes_the_consumer_where_the_query_begins(machine: Machine) -> None:
    reader = QueryReader(machine.open(), "etl")
    assert places(reader.begin({"orders": Start(4)})) == {"orders": 4}
    info = machine.open().stream("orders").consumer("etl").info()
    assert (info["delivered"], info["config"]["ack_policy"]) == ({"stream_seq": 3}, "explicit")


def test_a_query_without_a_checkpoint_goes_on_where_its_consumer_stands(machine: Machine) -> None:
    reader = QueryReader(machine.open(), "etl")
    (at,) = reader.begin({"orders": Start(1)}).values()
    end = read_on(machine.open(), at, 8)
    reader.acknowledge({"orders": end.position})
    reader.close()
    assert places(QueryReader(machine.open(), "etl").begin({"orders": Start(1)})) == {"orders": 8}
    assert machine.open().stream("orders").consumer("etl").info()["num_pending"] == 3


# --- what became of the streams


def test_a_loss_fails_a_query_until_it_may_go_on_and_is_told_once(machine: Machine) -> None:
    store = machine.open()
    reader = QueryReader(store)
    at = {"orders": read_on(store, reader.at("orders", 1), 11)}
    assert reader.settle(at, FAIL, REMEDY) == at
    for path in machine.paths:
        for name in machine.files().list_directory(path / "streams" / store.stream("orders").incarnation.hex()):
            machine.files().unlink(path / "streams" / store.stream("orders").incarnation.hex() / name)
    machine.open().repair()
    put(machine.open().stream("orders"), 5)
    for _ in range(2):
        with pytest.raises(DataLossError, match=f"1 to 10 are lost .10 messages., all of them read before. {REMEDY}"):
            QueryReader(machine.open()).settle(at, FAIL, REMEDY)
    assert len(machine.open().events(kind="query_failed")) == 1
    other = QueryReader(machine.open())
    after = other.settle(at, CONTINUE, REMEDY)
    assert places(after) == {"orders": 11}
    assert other.settle(after, FAIL, REMEDY) == after
    assert QueryReader(machine.open()).settle(after, FAIL, REMEDY) == after
    assert len(machine.open().events(kind="query_reconciled")) == 1
