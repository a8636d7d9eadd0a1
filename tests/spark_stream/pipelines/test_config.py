"""Pipeline files: what is taken, and that each mistake is told with file, key, what came and what is taken."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_stream.pipelines.config import load_pipeline
from spark_stream.pipelines.errors import DefinitionError
from spark_stream.pipelines.sinks import is_one_store
from spark_stream.pipelines.source import check_stores
from storage_core import Store

GOOD = """
checkpoint = "check/orders"
[source]
store = "disk-1,disk-2"
stream = "ORDERS"
[payload]
format = "json"
schema = "order_id STRING NOT NULL"
[sink]
kind = "delta"
path = "tables/orders"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.toml"


def test_relative_paths_are_meant_from_the_folder_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.chdir("/")
    pipeline = load_pipeline(file)
    folder = file.parent
    assert pipeline.name == "orders"
    assert pipeline.checkpoint == str(folder / "check" / "orders")
    assert pipeline.source.volumes == [str(folder / "disk-1"), str(folder / "disk-2")]
    assert pipeline.sink.path == str(folder / "tables" / "orders")


def test_a_store_that_the_file_leaves_open_comes_from_the_caller(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD.replace('store = "disk-1,disk-2"', "") + '[dead_letters]\nstream = "DEAD"\n')
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("JSTREAM_STORE", "elsewhere")
    assert load_pipeline(file).source.volumes == [str(file.parent / "elsewhere")]
    chosen = load_pipeline(file, "/data/a,/data/b")
    assert chosen.source.volumes == ["/data/a", "/data/b"]
    assert chosen.dead_letters is not None and chosen.dead_letters.volumes == ["/data/a", "/data/b"]
    monkeypatch.delenv("JSTREAM_STORE")
    with pytest.raises(DefinitionError, match=r"source\.store: is missing: .* --store, or set JSTREAM_STORE"):
        load_pipeline(file)


def test_stores_and_checkpoints_may_be_in_object_stores(file: Path) -> None:
    text = GOOD.replace('"disk-1,disk-2"', '["s3a://a/shop", "s3://b/shop"]').replace("check/orders", "s3a://c/check")
    file.write_text(text)
    pipeline = load_pipeline(file)
    assert pipeline.source.volumes == ["s3://a/shop", "s3://b/shop"]
    assert pipeline.checkpoint == "s3a://c/check", "as Spark knows it"
    file.write_text(GOOD.replace('store = "disk-1,disk-2"', ""))
    assert load_pipeline(file, "s3://a/shop,s3://b/shop").source.volumes == ["s3://a/shop", "s3://b/shop"]
    file.write_text(text.replace("c/check", "a/shop/check"))
    with pytest.raises(DefinitionError, match="lies in s3://a/shop, a volume of a store"):
        load_pipeline(file)
    for key, place in [(r"source\.store", "s3a://a/"), ("checkpoint", "s3a://c/")]:
        file.write_text(text.replace(place, place.replace("//", "//a-key:a-secret@")))
        with pytest.raises(DefinitionError, match=f"{key}.*storage options") as refused:
            load_pipeline(file)
        assert "secret" not in str(refused.value)


def test_variables_stand_for_the_environment_but_not_in_sql(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD.replace("check/orders", "${ETL_PLACE:-/var/etl}/orders").replace("tables/orders", "${TABLES}/orders")
    file.write_text(text + "[transform]\nsql = \"SELECT '${x}' FROM messages\"\n")
    with pytest.raises(DefinitionError, match=r"sink\.path: the variable TABLES is not set"):
        load_pipeline(file)
    monkeypatch.setenv("TABLES", "s3a://lake")
    pipeline = load_pipeline(file)
    assert (pipeline.checkpoint, pipeline.sink.path) == ("/var/etl/orders", "s3a://lake/orders")
    assert "${x}" in pipeline.transform.sql


def test_a_start_is_a_word_a_time_a_sequence_or_one_for_each_stream(file: Path) -> None:
    taken = {
        '"latest"': "latest",
        "1001": 1001,
        "{ ORDERS = 7 }": {"ORDERS": 7},
        '"2026-11-21T12:00:00Z"': "2026-11-21T12:00:00Z",
        "2026-11-21T12:00:00Z": "2026-11-21T12:00:00+00:00",
        "2026-11-21": "2026-11-21",
        '"1001"': 1001,  # as a variable of the environment comes
    }
    for spelled, value in taken.items():
        file.write_text(GOOD.replace('stream = "ORDERS"', f'stream = "ORDERS"\nstart = {spelled}'))
        assert load_pipeline(file).source.start == value


def test_settings_of_spark_may_be_quoted_or_tables(file: Path) -> None:
    file.write_text(GOOD + '[spark]\n"spark.master" = "local[1]"\nspark.sql.ansi.enabled = false\n')
    assert load_pipeline(file).spark == {"spark.master": "local[1]", "spark.sql.ansi.enabled": "false"}


def test_options_of_a_sink_are_texts_however_they_are_written(file: Path) -> None:
    file.write_text(GOOD + "[sink.options]\nmergeSchema = true\ndelta.x = 5\n")
    assert load_pipeline(file).sink.options == {"mergeSchema": "true", "delta.x": "5"}


def test_a_size_may_have_a_unit(file: Path) -> None:
    for written, size in (("64MB", "64MB"), (1_000_000, 1_000_000)):
        file.write_text(GOOD.replace("[source]", f"[source]\nmax_bytes = {written!r}"))
        assert load_pipeline(file).source.max_bytes == size


def test_a_mark_before_the_first_letter_is_no_mistake(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_pipeline(file).name == "orders"


def test_a_folder_has_one_name_however_it_is_spelled(file: Path) -> None:
    for spelled in ("/var/etl/orders", "file:/var/etl/orders/", "file:///var/etl/./orders", "/var/etl/x/../orders"):
        file.write_text(GOOD.replace("check/orders", spelled))
        assert load_pipeline(file).checkpoint == "/var/etl/orders"


def test_the_name_of_a_file_that_cannot_be_a_pipelines_is_told_with_the_way_out(file: Path) -> None:
    file = file.with_name("orders.v2.toml")
    file.write_text(GOOD)
    with pytest.raises(DefinitionError, match=r"'orders\.v2' is not .*; it is the file's, unless the file says name"):
        load_pipeline(file)
    file.write_text(f'name = "orders"\n{GOOD}')
    assert load_pipeline(file).name == "orders"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            'kind = "delta"',
            'kind = "detla"',
            "sink.kind: 'detla' is not one of console, delta, jstream, parquet; did you mean 'delta'?",
        ),
        ('stream = "ORDERS"', 'streem = "ORDERS"', "source.streem: there is no such key; did you mean 'stream'?"),
        ('stream = "ORDERS"', "", "source.stream: is missing"),
        ('stream = "ORDERS"', "stream = 5", "source.stream: 5 is not text or a list"),
        ('stream = "ORDERS"', 'stream = ["A", 5]', "source.stream[1]: 5 is not text"),
        (
            '"ORDERS"',
            '"ORDERS"\non_data_loss = "fial"',
            "source.on_data_loss: 'fial' is not one of continue, fail",
        ),
        ('"ORDERS"', '"ORDERS"\nmax_bytes = true', "source.max_bytes: True is not a whole number from 1 on"),
        ('"ORDERS"', '"ORDERS"\nmax_blocks = 1.5', "source.max_blocks: 1.5 is not a whole number from 1 on"),
        ('"ORDERS"', '"ORDERS"\nstart = { "A.B" = "x" }', "source.start.A.B: 'x' is not a whole number"),
        ('"ORDERS"', '"ORDERS"\nstart = [1]', "source.start: [1] is not text or a whole number or a table"),
        ('kind = "delta"', "kind = 5", "sink.kind: 5 is not text"),
        ('kind = "delta"', "", "sink.kind: is missing"),
        (
            'format = "json"',
            'format = "JSON"',
            "payload.format: 'JSON' is not one of avro, bytes, json, msgpack, protobuf, utf8; did",
        ),
        ("checkpoint =", "trigger = 5\ncheckpoint =", "trigger: 5 is not a table"),
        ("[payload]", '[trigger]\nmode = "now"\n[payload]', "trigger.mode: 'now' is not one of available-now, cont"),
        (
            'path = "tables/orders"',
            'path = "a"\nmode = "upsrt"',
            "sink.mode: 'upsrt' is not one of append, upsert;",
        ),
        (
            'stream = "ORDERS"',
            'stream = "ORDERS"\nmax_messages = "many"',
            "source.max_messages: 'many' is not a whole number",
        ),
        (
            'stream = "ORDERS"',
            'stream = "ORDERS"\nmax_messages = 0',
            "source.max_messages: 0 is not a whole number from 1 on",
        ),
        (
            'stream = "ORDERS"',
            'stream = "ORDERS"\nmax_bytes = "5XB"',
            "source.max_bytes: '5XB' is not a number of bytes",
        ),
        (
            'stream = "ORDERS"',
            'stream = "ORDERS"\nmax_bytes = "0k"',
            "source.max_bytes: '0k' is not a number of bytes from",
        ),
        (
            'stream = "ORDERS"',
            'stream = "A*"\nstart = 7',
            "source.start: 7 is a sequence, which several streams do not share",
        ),
        (
            'stream = "ORDERS"',
            'stream = "A"\nstart = "soon"',
            "source.start: 'soon' is not earliest, latest, consumer, a sequence",
        ),
        ('stream = "ORDERS"', 'stream = "A"\nstart = "erliest"', "12:00:00Z; did you mean 'earliest'?"),
        ('stream = "ORDERS"', 'stream = "A"\nstart = "consumer"', "source.start: 'consumer' needs source.consumer"),
        ('stream = "ORDERS"', 'stream = "A"\nsubject = "a..b"', "source.subject: 'a..b' is not a filter"),
        (
            'stream = "ORDERS"',
            'stream = "A"\nconsumer = "a b"',
            "source.consumer: 'a b' is not 1 to 128 of the characters",
        ),
        ('schema = "order_id STRING NOT NULL"', "", "payload.schema: is missing: format json needs one"),
        ('format = "json"', 'format = "utf8"', "payload.schema: format utf8 has no schema"),
        ('format = "json"', 'format = "avro"', "payload.schema: format avro has no schema"),
        ('format = "json"', 'format = "json"\nskip_bytes = 5', "payload.skip_bytes: format json has no skip_bytes"),
        (
            'format = "json"\nschema = "order_id STRING NOT NULL"',
            'format = "avro"',
            "payload.schema_file: is missing: format avro needs one, such as 'order.avsc'",
        ),
        (
            'format = "json"\nschema = "order_id STRING NOT NULL"',
            'format = "avro"\nschema_file = "none.avsc"',
            "none.avsc is not a file",
        ),
        (
            'format = "json"\nschema = "order_id STRING NOT NULL"',
            'format = "protobuf"\nschema_file = "orders.desc"',
            "payload.message: is missing: format protobuf needs one, such as 'shop.Order'",
        ),
        (
            'format = "json"',
            'format = "json"\ncolumn = "subject"',
            "payload.column: 'subject' is a column of every message",
        ),
        ('path = "tables/orders"', "", "sink: needs path or table"),
        ('path = "tables/orders"', 'path = "a"\ntable = "b"', "sink: has path and table; give one of them"),
        ('path = "tables/orders"', 'path = "a"\nmode = "upsert"', "sink.key: is missing: mode 'upsert' needs"),
        (
            'path = "tables/orders"',
            'path = "a"\nmode = "upsert"\nkey = "id"',
            "sink.order_by: is missing: mode 'upsert' needs",
        ),
        ('path = "tables/orders"', 'path = "a"\nkey = "id"', "sink.key: is for mode = 'upsert'"),
        (
            'path = "tables/orders"',
            'path = "a"\noutput_mode = "complete"',
            "sink.output_mode: 'complete' hands a result over again when it changes, and an append keeps each: take",
        ),
        (
            'kind = "delta"',
            'kind = "parquet"\noutput_mode = "update"',
            "sink.output_mode: 'update' hands a result over",
        ),
        (
            'path = "tables/orders"',
            'path = "a"\nmode = "upsert"\noutput_mode = "update"\nkey = "id"\norder_by = "n"',
            "sink.order_by: means nothing with output_mode = 'update'",
        ),
        ("[payload]", "[transform]\nwatermark = { at = 5 }\n[payload]", "transform.watermark.at: 5 is not text"),
        ("[payload]", '[transform]\nwatermark = { at = "soon" }\n[payload]', "watermark.at: 'soon' is not a duration"),
        ("[payload]", '[transform]\nwatermark = { a = "1s", b = "1s" }\n[payload]', "names a, b; a pipeline has a"),
        ('path = "tables/orders"', 'path = "a"\nstream = "S"', "sink.stream: means nothing with kind = 'delta'"),
        ('kind = "delta"', 'kind = "parquet"\nmode = "upsert"', "sink.mode: 'upsert' is for kind = 'delta'"),
        ('checkpoint = "check/orders"', "", "checkpoint: is missing"),
        ('checkpoint = "check/orders"', "checkpoint = 5", "checkpoint: 5 is not text"),
        (
            'checkpoint = "check/orders"',
            'checkpoint = "hdfs://b/c"',
            "checkpoint: 'hdfs://b/c' is no folder that this host sees",
        ),
        ("[payload]", '[trigger]\ninterval = "soon"\n[payload]', "trigger.interval: 'soon' is not a duration"),
        ("[payload]", '[trigger]\ninterval = "5"\n[payload]', "trigger.interval: '5' has no unit"),
        ("[payload]", '[spark]\nmaster = "local"\n[payload]', "spark.master: settings of Spark begin with spark."),
        ("[payload]", '[transform]\nsql = "x"\npython = "a:b"\n[payload]', "transform: has sql and python"),
        (
            "[payload]",
            '[transform]\npython = "a"\n[payload]',
            "transform.python: 'a' is not module:function or file.py:function",
        ),
        ("[payload]", '[transform]\npython = "gone.py:f"\n[payload]', "gone.py is not a file"),
        ("[payload]\n", "[paylaod]\n", "paylaod: there is no such key; did you mean 'payload'?"),
        ("[payload]", "[payload", "is not TOML"),
        ("[payload]", "a = " + "[" * 5000 + "]" * 5000, "lists or tables too deep"),
        (
            '"ORDERS"',
            '"ORDERS"\nstart = { ODERS = 7 }',
            "source.start: 'ODERS' is not read here: source.stream is ORDERS;",
        ),
        ('"ORDERS"', '"ORDERS"\nstart = { ORDERS = true }', "source.start.ORDERS: True is not a whole number"),
        ('"disk-1,disk-2"', '"disk\\u0000"', "source.store: "),
        ('path = "tables/orders"', 'path = "a"\nrows = 5', "sink.rows: means nothing with kind = 'delta'"),
        ('path = "tables/orders"', 'path = "a"\noptions = { a = [1] }', "sink.options.a: [1] is not text, a number"),
        ('path = "tables/orders"', 'path = "a"\nmode = "upsert"\nkey = " , "\norder_by = "b"', "sink.key: is missing"),
        ('"check/orders"', '"disk-1"', "disk-1, a volume of a store"),
        ('"tables/orders"', '"disk-2/tables"', "disk-2, a volume of a store"),
        ('"tables/orders"', '"check/orders/"', "is sink.path as well"),
    ],
)
def test_a_mistake_names_file_key_what_came_and_what_is_taken(file: Path, before: str, after: str, told: str) -> None:
    assert before in GOOD
    file.write_text(GOOD.replace(before, after))
    with pytest.raises(DefinitionError) as raised:
        load_pipeline(file)
    assert raised.value.file == str(file) and told in str(raised.value)


def test_a_file_that_is_gone_is_the_operating_systems_error(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_pipeline(file)


# --- files that nobody writes by hand


def make_sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 40)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a terabyte": make_sparse,
    "a FIFO": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a dotted key": lambda file: file.write_text("a." * 300_000 + "a = 1"),
    "a dotted table": lambda file: file.write_text("[" + "a." * 300_000 + "a]"),
    "a dotted key of quoted parts": lambda file: file.write_text("'a'.\"a\" . " * 40_000 + "a = 1"),
    "a dotted key in a table": lambda file: file.write_text("x = {" + "a." * 100_000 + "a = 1}"),
    "lists": lambda file: file.write_text("x = " + "[" * 900 + "]" * 900),
    "tables": lambda file: file.write_text("x = " + "{a = " * 900 + "1" + "}" * 900),
    "variables": lambda file: file.write_text('x = "' + "${HOSTILE}" * 90_000 + '"'),
    "a number": lambda file: file.write_text("x = 0x" + "f" * 1_000_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_file_can_be_is_refused_before_it_costs_anything(
    file: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE", "x" * 1_000)
    HOSTILE[kind](file)
    with pytest.raises(DefinitionError, match=file.name):
        load_pipeline(file)


def test_an_open_variable_is_text_however_often_it_stands_there(file: Path) -> None:
    text = "${A:-" * 160_000
    file.write_text(GOOD.replace('"tables/orders"', f'"tables/{text}"'))
    pipeline = load_pipeline(file)
    assert pipeline.sink.path is not None and pipeline.sink.path.endswith("${A:-" * 10)


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "$x", "${A", "${A:", "${A-b}", "a}b"])
def test_what_is_no_variable_stays_as_it_is(file: Path, text: str) -> None:
    file.write_text(GOOD.replace("tables/orders", f"tables/{text}/x"))
    pipeline = load_pipeline(file)
    assert pipeline.sink.path == str(file.parent / f"tables/{text}/x")


def test_dots_in_texts_are_no_depth(file: Path) -> None:
    sql = "SELECT " + ", ".join(f"t.a{number}" for number in range(100)) + " -- 1.2.3." + "4." * 60 + " it's\n FROM t"
    file.write_text(GOOD + f'''[transform]\nsql = """{sql}"""\n# {"a." * 60}\n''')
    assert load_pipeline(file).transform is not None


def test_a_store_is_the_same_by_whichever_of_its_volumes_it_is_named(file: Path) -> None:
    volumes = [file.parent / f"disk-{number}" for number in range(3)]
    with Store.create(volumes) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        store.add_stream({"name": "OUT", "subjects": ["out"]})
    with Store.create(file.parent / "other") as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
    sink = 'kind = "jstream"\nstore = "disk-1"\nstream = "ORDERS"\nsubject = "orders.new"\n'
    text = GOOD.replace("disk-1,disk-2", "disk-0").partition("[sink]")[0] + "[sink]\n" + sink
    file.write_text(text)
    with pytest.raises(DefinitionError, match=r"sink\.stream: 'ORDERS' is the source"):
        check_stores(load_pipeline(file))
    file.write_text(text.replace("disk-1", "other"))
    assert check_stores(load_pipeline(file)) == ["source: stream ORDERS, 0 messages"]
    letters = '[dead_letters]\nstore = "disk-2"\nstream = "ORDERS"\nsubject = "orders.new"\n'
    file.write_text(text.replace("disk-1", "other") + letters)
    with pytest.raises(DefinitionError, match="a bad message would come again"):
        check_stores(load_pipeline(file))
    first, second, third = map(str, volumes)
    assert is_one_store((first,), (second, third)) and not is_one_store((first,), (str(file.parent / "other"),))
