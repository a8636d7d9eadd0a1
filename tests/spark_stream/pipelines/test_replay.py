"""Dead letters by kind of reason, and replayed: into a stream and into Delta, through kills, and what is refused."""

import errno
import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_stream.pipelines import replay
from spark_stream.pipelines.letters import KIND, LETTER, as_letters, as_messages
from spark_stream.pipelines.payload import DATA, REASON
from spark_stream.pipelines.run import no_messages
from spark_stream.pipelines.state import REPLAY, PipelineState
from storage_core.store.stream import Stream

MESSAGES = """SELECT to_json(struct(stream, sequence, subject, timestamp, headers, id, amount)) AS data FROM messages"""
STEPS = ("note storing", "store", "note removing", "remove", "note done")


pytestmark = pytest.mark.spark


@pytest.fixture
def active(etl: Any, spark: SparkSession, make_active: Callable[[SparkSession], None]) -> Any:
    make_active(spark)
    etl.store.add_stream({"name": "OUT", "subjects": ["out"]})
    etl.define('kind = "jstream"\nstream = "OUT"\n', letters=True)
    change(etl, "SELECT sequence, id, amount FROM messages", MESSAGES)
    return etl


def change(etl: Any, before: str, after: str) -> None:
    text = etl.file.read_text()
    assert before in text
    etl.file.write_text(text.replace(before, after))


def mend(etl: Any) -> None:
    change(etl, "amount INT", "amount DOUBLE")


def payloads(etl: Any, stream: str) -> list[bytes]:
    found: list[bytes] = etl.store.stream(stream).read(columns=["data"]).read_all()["data"].to_pylist()
    return found


def dead(etl: Any) -> list[bytes]:
    return payloads(etl, "DEAD")


def stored(etl: Any, stream: str = "OUT") -> list[dict[str, Any]]:
    return sorted((json.loads(row) for row in payloads(etl, stream)), key=lambda row: row["sequence"])


def dying_before(step: str) -> pytest.MonkeyPatch:
    """Let the next replay fail before this step, as if it were killed there; return what ends that."""
    patch = pytest.MonkeyPatch()

    def dies(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keys: Any) -> Any:
            is_note = name == "note" and arguments[1] == REPLAY
            if step == (f"note {arguments[2]['stage']}" if is_note else name):
                raise OSError(errno.EIO, f"killed before {step}")
            return function(*arguments, **keys)

        return call

    patch.setattr(PipelineState, "write", dies("note", PipelineState.write))
    patch.setattr(replay, "store_batch", dies("store", replay.store_batch))
    patch.setattr(Stream, "remove", dies("remove", Stream.remove))
    return patch


def replay_through_kills(etl: Any, steps: tuple[str, ...]) -> None:
    for step in steps:
        patch = dying_before(step)
        try:
            assert f"killed before {step}" in etl.fail(verb="replay")
        finally:
            patch.undo()
        assert step == STEPS[0] or etl.status()["replay"]["done"] is None


def test_letters_are_grouped_by_kind_without_the_values_that_reasons_show(etl) -> None:
    etl.define('kind = "console"\n', letters=True)
    dead = etl.store.stream("DEAD")

    def letter(reason: bytes, sequence: bytes, *own: tuple[str, bytes], name: bytes = b"orders") -> None:
        added = {"Reason": reason, "Stream": b"ORDERS", "Sequence": sequence, "Pipeline": name}
        dead.publish("dead.orders", b"x", headers=[*own, *((f"Jstream-{key}", value) for key, value in added.items())])

    letter(b"amount: ten is not INT", b"3")
    letter(b"amount: it is not\nmuch is not INT", b"4", ("Jstream-Reason", b"of another life"), ("own", b"\xff"))
    letter(b"amount: \xff is not INT", b"9" * 5000)
    letter(b"amount: is not INT", b"6")
    letter(b"payload is not JSON", b"7")
    letter(b"id is null or missing", b"8")
    letter(b"amount: 1 is not INT", b"9", name=b"another")
    dead.publish("dead.orders", b"no letter at all")
    code, out, err = etl.command("letters", etl.file, "--json")
    assert code == 0, err
    kinds = json.loads(out)
    assert [(kind["kind"], kind["letters"], kind["letter"], kind["sequence"]) for kind in kinds] == [
        ("amount: is not INT", 4, 4, 6),
        ("id is null or missing", 1, 6, 8),
        ("payload is not JSON", 1, 5, 7),
    ]
    assert kinds[0]["first"] < kinds[0]["last"] < kinds[2]["first"] and kinds[0]["stream"] == "ORDERS"
    assert "amount: is not INT" in etl.command("letters", etl.file)[1]
    etl.define('kind = "console"\n')
    assert "dead_letters: is missing" in etl.fail(verb="letters", code=2)


def test_mended_letters_go_into_a_stream_once_though_the_replay_is_killed_between_all_steps(
    active, monkeypatch: pytest.MonkeyPatch
) -> None:
    etl, orders = active, active.store.stream("ORDERS")
    headers = [("customer", b"\xff"), ("Jstream-Reason", b"of another life")]
    for number, amount in enumerate((1, 2.5, 3, 4.5, 5.5)):
        orders.publish("orders.new", b'{"id": "o%d", "amount": %s}' % (number, str(amount).encode()),
                       headers=headers if number % 2 else None)  # fmt: skip
    etl.say(b"nonsense")
    etl.say(b'{"id": "o9", "amount": true}')
    summary = etl.run()
    assert (summary["rows_out"], summary["rows_dead"]) == (2, 5)
    assert etl.status()["replay"] is None
    assert "did you mean 'amount: is not INT'" in etl.fail("--kind", "amount: is not IMT", verb="replay")
    assert etl.run(verb="replay")["rows_in"] == 0  # none parses yet
    mend(etl)
    code, out, err = etl.command("replay", etl.file, "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out) == {
        "parse": 3,
        "stay": 2,
        "unfinished": 0,
        "kinds": [
            {"kind": "amount: is not INT", "parse": 3, "stay": 1},
            {"kind": "payload is not JSON", "parse": 0, "stay": 1},
        ],
    }
    monkeypatch.setattr(replay, "PART_COUNT_MAX", 2)
    replay_through_kills(etl, STEPS[:2])
    assert (len(stored(etl)), len(dead(etl))) == (2, 5)

    # While a part is half done, nothing may change that it depends on.
    change(etl, "amount DOUBLE", "amount INT")
    refused = etl.fail(verb="replay")
    assert "2 of its letters do not parse any more, the first is letter 1: change [payload] back" in refused
    change(etl, "amount INT", "amount DOUBLE")
    etl.store.add_stream({"name": "OTHER", "subjects": ["other"]})
    for key, other, told in (("OUT", "OTHER", "change [sink] back"), ("DEAD", "OTHER", "name that stream in [dead_le")):
        change(etl, f'stream = "{key}"', f'stream = "{other}"')
        assert told in etl.fail(verb="replay")
        change(etl, f'stream = "{other}"', f'stream = "{key}"')

    replay_through_kills(etl, STEPS[2:])
    assert (len(stored(etl)), len(dead(etl))) == (4, 3)  # the first part is stored and removed
    assert etl.run(verb="replay")["rows_in"] == 1
    assert dead(etl) == [b"nonsense", b'{"id": "o9", "amount": true}']
    assert etl.run(verb="replay")["rows_in"] == 0 and etl.status()["replay"]["done"]

    # The rows are those that the mended pipeline makes of the stream itself.
    etl.store.add_stream({"name": "DEAD2", "subjects": ["dead.two"]})
    for before, after in (('"OUT"', '"OTHER"'), ('"DEAD"', '"DEAD2"'), ('"checkpoint"', '"checkpoint2"')):
        change(etl, before, after)
    etl.run()
    assert stored(etl, "OTHER") == stored(etl)


@pytest.mark.delta
def test_mended_letters_are_appended_to_delta_once(delta_etl, delta_spark: SparkSession) -> None:
    etl = delta_etl
    etl.define(f'kind = "delta"\npath = "{etl.table}"\n', letters=True)
    change(etl, "sequence, id, amount", "sequence, id, CAST(amount AS INT) AS amount")
    etl.publish(1, 2)
    for amount in (b"2.5", b"3.5", b'"x"'):
        etl.say(b'{"id": "o1", "amount": %s}' % amount)
    etl.run()
    mend(etl)
    replay_through_kills(etl, ("note removing",))
    etl.publish(7)
    assert etl.run()["rows_in"] == 1
    etl.run(verb="replay")
    assert etl.run("--if-running", "skip", verb="replay")["rows_in"] == 0
    rows = delta_spark.read.format("delta").load(etl.table).orderBy("sequence").collect()
    assert [(row["sequence"], row["amount"]) for row in rows] == [(1, 1), (2, 2), (3, 2), (4, 3), (6, 7)]
    assert dead(etl) == [b'{"id": "o1", "amount": "x"}']


def test_letters_of_kafka_are_the_same_messages_again(spark: SparkSession, pipeline: Any) -> None:
    source = pipeline(
        '[source]\nstore = "kafka://localhost:9092"\nstream = "orders"\n[sink]\nkind = "delta"\npath = "table"'
    ).source
    moment = datetime(2026, 11, 21, 12, 0, 0, 123456, timezone.utc)
    rows = [
        ("orders", 7, "orders", moment, [("k", b"\xff")], b"{", key, partition, f"orders/{partition}/7", "bad")
        for partition, key in ((0, b"key"), (1, b""), (2, None))
    ]
    rows.append(("orders", 8, "orders", moment, None, b"", None, 3, "orders/3/8", "amount: 1 is not DATE"))
    columns = no_messages(spark, source).withColumnRenamed("data", DATA).withColumn(REASON, F.lit("bad")).schema
    bad = spark.createDataFrame(rows, columns)
    letters = as_letters(bad, "orders").withColumn("sequence", F.monotonically_increasing_id())
    messages = as_messages(letters, "orders", source)
    assert messages.drop(LETTER, KIND).schema.names == no_messages(spark, source).drop("data").schema.names + ["data"]
    before = bad.drop(REASON).withColumnRenamed(DATA, "data")
    assert messages.select(before.columns).exceptAll(before).count() == 0 and messages.count() == len(rows)
    assert {row[KIND] for row in messages.select(KIND).collect()} == {"bad", "amount: is not DATE"}
    assert as_messages(letters, "another", source).count() == 0


def test_a_replay_that_could_store_twice_is_refused(active) -> None:
    etl = active
    etl.say(b"nonsense")
    etl.run()
    etl.forget_commit()
    assert "batch 0 of the pipeline is not finished" in etl.fail(verb="replay")
    change(etl, "amount INT", "amount DOUBLE")
    etl.run()
    etl.say(b'{"id": "o1", "amount": "x"}')
    etl.run()
    etl.forget_commit()
    change(etl, "amount DOUBLE", "amount STRING")
    assert "has stored 1 dead letters, where it has 0 now: [payload] has changed since" in etl.fail()
    change(etl, "amount STRING", "amount DOUBLE")
    assert etl.run()["rows_dead"] == 1
    assert stored(etl) == []
    with PipelineState(str(etl.folder / "checkpoint")).lock("test"):
        assert "is held by test" in etl.fail(verb="replay")
        assert etl.run("--if-running", "skip", verb="replay")["skipped"]
    assert "--json" in etl.fail("--json", verb="replay", code=2)
    etl.store.stream("DEAD").edit(deny_delete=True)
    assert "has deny_delete set: replayed letters could not be removed" in etl.fail(verb="replay")
    for sink in ('kind = "console"\n', 'kind = "parquet"\npath = "table"\n'):
        etl.define(sink, letters=True)
        assert "does not store a batch once if it comes again" in etl.fail(verb="replay")
