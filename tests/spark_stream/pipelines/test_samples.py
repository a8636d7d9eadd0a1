"""`jstream etl schema`: what it proposes is taken by a pipeline, and every message that it has seen is good with it."""

import json
import random
from typing import Any

import msgpack
import pytest
from pyspark.sql import SparkSession

from spark_stream.pipelines.samples import propose

from .test_payload import parsed

pytestmark = pytest.mark.spark

ORDERS = [
    {"id": "a", "n": 1, "at": "2026-11-21T12:00:00.5Z", "day": "2026-11-21", "to": {"city": "Bonn", "zip code": 53}},
    {"id": "b", "n": 2.5, "at": "2026-11-21T12:00:00+01:00", "tags": [], "ok": True, "mixed": 1, "long": 2**70},
    {"id": None, "tags": [{"k": 1}, {"k": "x", "l": None}], "mixed": [1], "to": None, "long": 1, "day": "today"},
    {"id": "c", "to": {"city": "Köln", "more": {}}, "of-day": {"`x`": [[1], [2.5]]}},
]


def random_value(source: random.Random, depth: int) -> Any:
    kinds = ["null", "bool", "int", "float", "text", "time", "list", "dict"][: 8 if depth < 3 else 6]
    match source.choice(kinds):
        case "null":
            return None
        case "bool":
            return source.random() < 0.5
        case "int":
            return source.choice([0, -1, 2**31, 2**63 - 1, 2**63, 10**30])
        case "float":
            return source.choice([0.5, -1e300, 1e-9])
        case "text":
            return source.choice(["", "x", "2026-01-01", "5", "ä"])
        case "time":
            return "2026-01-01T00:00:00Z"
        case "list":
            return [random_value(source, depth + 1) for _ in range(source.randrange(3))]
    return {source.choice("abc"): random_value(source, depth + 1) for _ in range(source.randrange(3))}


def test_a_proposal_reads_as_a_person_would_write_it() -> None:
    proposal = propose([*(json.dumps(order).encode() for order in ORDERS), b"no JSON", None])
    assert (proposal.format, proposal.column, proposal.sampled, proposal.others) == ("json", "", 6, 2)
    assert proposal.schema.splitlines() == [
        "    id STRING,",
        "    n DOUBLE,",
        "    at TIMESTAMP,",
        "    day STRING,",
        "    to STRUCT<",
        "        city: STRING,",
        "        `zip code`: BIGINT,",
        "        more: STRING",
        "    >,",
        "    tags ARRAY<STRUCT<",
        "        k: STRING,",
        "        l: STRING",
        "    >>,",
        "    ok BOOLEAN,",
        "    mixed STRING,",
        "    long DECIMAL(38, 0),",
        "    `of-day` STRUCT<",
        "        ```x```: ARRAY<ARRAY<DOUBLE>>",
        "    >",
    ]
    assert (
        proposal.sometimes["id"] == 1
        and "n" in proposal.sometimes
        and "# 2 of 6 messages are not json" in proposal.toml()
    )


def test_every_message_is_good_with_the_schema_proposed_from_it(spark: SparkSession, pipeline) -> None:
    source = random.Random("samples")
    orders = [*ORDERS, *({source.choice("abcd"): random_value(source, 0) for _ in range(3)} for _ in range(60))]
    small = [order for order in orders if str(10**30) not in str(order) and str(2**70) not in str(order)]
    for payloads in ([json.dumps(order).encode() for order in orders], [msgpack.packb(order) for order in small]):
        rows, reasons = parsed(spark, pipeline, payloads, propose(payloads).toml())
        assert reasons == {} and len(rows) == len(payloads)


def test_the_command_proposes_what_etl_check_takes(etl) -> None:
    for number in range(3):
        etl.say(json.dumps({"id": f"o{number}", "subject": "s", "amount": number}).encode())
    store = etl.folder / "volume"
    code, out, err = etl.command("schema", "ORDERS", "--store", store, "--samples", 2)
    assert code == 0 and out.startswith("# from 2 messages of ORDERS\n[payload]\n"), (out, err)
    assert 'column = "body"' in out and "amount BIGINT" in out
    etl.file.write_text(f"""
checkpoint = "checkpoint"
[source]
store = "volume"
stream = "ORDERS"
{out}
[sink]
kind = "console"
""")
    code, shown, err = etl.command("check", etl.file)
    assert code == 0 and "body struct<id:string,subject:string,amount:bigint>" in shown, (shown, err)
    code, out, err = etl.command("schema", "DEAD", "--store", store)
    assert code == 1 and "stream DEAD: no message to propose a schema from" in err
