"""The command line as a whole: global options, wrong words, exit codes, and what starting it costs."""

import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from storage_core import Store
from storage_core.store.environment import Environment


def test_versions_need_no_store_and_say_what_a_report_of_a_fault_needs(jstream) -> None:
    outcome = jstream("--version", with_store=False)
    assert (outcome.code, outcome.err) == (0, "")
    names = dict(line.split(" ", 1) for line in outcome.out.splitlines() if not line.startswith("extra"))
    assert names["Python"] == platform.python_version() and names["Spark"] == version("pyspark")
    assert names["jstream"] and re.match(r"\d+", names["Java"])
    assert f"extra avro: fastavro {version('fastavro')}" in outcome.out.splitlines()
    assert "pytest" not in outcome.out
    assert jstream("version", with_store=False) == outcome


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["stream"],
        ["store"],
        ["block"],
        ["pub"],
        ["sub"],
        ["verify"],
        ["stream", "view"],
        ["block", "dump"],
        ["cluster"],
        ["cluster", "volume"],
        ["cluster", "volume", "replace"],
        ["stream", "report"],
        ["scrub"],
        ["repair"],
        ["maintain"],
        ["events"],
    ],
)
def test_every_level_has_help(jstream, words: list[str]) -> None:
    outcome = jstream(*words, "--help", with_store=False)
    assert outcome.code == 0
    assert f"Usage: jstream {' '.join(words)}".rstrip() in " ".join(outcome.out.split())


@pytest.mark.parametrize("words", [[], ["stream"], ["stream", "add"], ["cluster", "volume", "replace"]])
def test_help_is_a_command_too(jstream, words: list[str]) -> None:
    shown = jstream(*words, "--help", with_store=False)
    assert jstream("help", *words, with_store=False) == shown
    assert jstream(*words[:1], "help", *words[1:], with_store=False) == shown
    assert jstream("help", "strem", with_store=False).code == 2


def test_help_lists_what_a_newcomer_needs_first_and_asks_for_no_value_of_a_flag(jstream) -> None:
    listed = re.findall(r"^  ([a-z]+) ", jstream("--help", with_store=False).out, re.MULTILINE)
    assert listed[:4] == ["store", "stream", "consumer", "pub"]
    for words in ([], ["stream"], ["stream", "ls"], ["verify"]):
        shown = jstream(*words, "--help", with_store=False).out
        assert "--help" in shown
        assert "<bool>" not in shown
        assert "..." not in shown.replace("]...", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strem"], "no such command: strem; did you mean 'stream'?"),
        (["stream", "lss"], "no such command: lss; did you mean 'ls'?"),
        (["consumer", "nxt"], "no such command: nxt; did you mean 'next'?"),
        (["stream", "ls", "--jsn"], "no such option: --jsn; did you mean '--json'?"),
        (["--sotre", "x", "verify"], "no such option: --sotre; did you mean '--store'?"),
        (["stream", "get"], "argument STREAM is missing (help: jstream stream get --help)"),
        (["stream", "get", "ORDERS", "first"], "SEQ: 'first' is not a whole number (help:"),
        (["stream", "view", "ORDERS", "0"], "SIZE: 0 is not 1 or more (help:"),
        (["metrics", "--port", "99999"], "--port: 99999 is not 0 to 65535 (help:"),
        (["stream", "purge", "ORDERS", "--seq", "x"], "--seq: 'x' is not a whole number (help:"),
        (["stream", "ls", "--json=yes"], "error: option --json takes no value\n"),
        (["stream", "ls", "--store"], "error: option --store needs a value\n"),
        (["etl", "run", "f", "--if-running", "skp"], "'skp' is not one of fail, skip; did you mean 'skip'?"),
        (["completion"], "argument SHELL is missing; valid values are bash, zsh, fish (help:"),
        (["maintain", "--json"], "error: no such option: --json (help: jstream maintain --help)\n"),
        (["versions"], "error: no such command: versions (help: jstream --help)\n"),
        (["stream", "ls", "more"], "more"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(jstream, words: list[str], said: str) -> None:
    outcome = jstream(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["maintain", "--every", "5m"], "--every is for --watch"),
        (["metrics", "--address", "0.0.0.0"], "--address is for --port"),
        (["doctor", "--conf", "spark.master=yarn"], "--conf is for --spark"),
    ],
)
def test_an_option_without_the_one_that_it_is_for_is_refused(jstream, orders, words: list[str], text: str) -> None:
    outcome = jstream(*words)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"error: {text}\n")


@pytest.mark.parametrize("words", [[], ["stream"], ["consumer"]])
def test_without_arguments_a_command_shows_its_help(jstream, words: list[str]) -> None:
    outcome = jstream(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == jstream(*words, "--help").out and "Usage: jstream" in outcome.out


def test_verbs_have_the_other_names_of_the_nats_command_line(jstream, orders) -> None:
    for alias, verb in (("list", "ls"), ("show", "info"), ("del", "rm")):
        words = ["ORDERS"] if verb != "ls" else []
        words += ["--force"] if verb == "rm" else []
        assert jstream("stream", alias, "--help").out == jstream("stream", verb, "--help").out
        assert jstream("stream", alias, *words).code == 0
    assert orders.streams() == []


def test_without_a_store_it_says_how_to_name_one(jstream) -> None:
    outcome = jstream("stream", "ls", with_store=False)
    assert outcome.code == 2
    assert outcome.err.startswith("error: no store: pass --store VOLUME[,VOLUME] or set JSTREAM_STORE; ")
    assert "jstream context add" in outcome.err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_store_may_be_named_before_within_and_after_the_verb(jstream, orders, place: int) -> None:
    words = ["stream", "ls", "--names"]
    words[place:place] = ["--store", str(jstream.volume)]
    outcome = jstream(*words, with_store=False)
    assert (outcome.code, outcome.out) == (0, "ORDERS\n")


def test_a_store_that_is_named_wins_over_the_environment_and_the_nearest_to_the_verb_wins(jstream, orders) -> None:
    assert jstream("--store", "/nowhere", "stream", "ls").code == 1
    assert jstream("--store", "/nowhere", "stream", "ls", "--store", jstream.volume).code == 0


def test_a_place_without_a_store_is_an_error_that_names_it(jstream, tmp_path: Path) -> None:
    outcome = jstream("stream", "ls", "--store", tmp_path / "nowhere")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert str(tmp_path / "nowhere") in outcome.err


def test_a_folder_without_a_store_is_an_error_with_what_makes_or_reads_one(jstream, tmp_path: Path) -> None:
    assert "jstream store create" in jstream("stream", "ls", "--store", tmp_path).err
    nats = Path(__file__).parents[2] / "data" / "nats-orders" / "store" / "n1"
    outcome = jstream("stream", "ls", "--store", f"{nats}, /nowhere")
    assert (outcome.code, outcome.out) == (1, "")
    assert "a store of another server lies there: Spark reads it with option layout=nats" in outcome.err


def test_an_unknown_stream_is_an_error_with_the_nearest_name(jstream, orders) -> None:
    outcome = jstream("stream", "info", "ORDER")
    assert outcome.code == 1
    assert "did you mean 'ORDERS'?" in outcome.err


def test_an_error_cannot_steer_the_terminal(jstream, orders) -> None:
    outcome = jstream("stream", "info", "\x1b[2J\n\r")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert outcome.err.rstrip("\n").isprintable()


def test_a_store_of_another_machine_is_read_but_written_only_after_a_take_over(jstream, tmp_path: Path) -> None:
    volume = tmp_path / "theirs"
    theirs = Environment(lock_domain=lambda: "another machine")
    with Store.create(volume, env=theirs) as store:
        store.add_stream({"name": "S"}).publish("S", b"x")
    assert jstream.done("stream", "get", "S", 1, "--raw", "--store", volume) == "x\n"
    refused = jstream("pub", "S", "y", "--store", volume)
    assert refused.code == 1
    assert "--take-over" in refused.err
    assert jstream.done("pub", "S", "y", "--take-over", "--store", volume) == "S 2\n"
    assert jstream.done("pub", "S", "z", "--store", volume) == "S 3\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_an_error_that_names_it(jstream, orders, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        outcome = jstream.process("stream", "info", "ORDERS", stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert outcome.code == 1
    assert outcome.err == "error: standard output: no space left on device\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_quiet(jstream, store, unbuffered: str) -> None:
    store.add_stream({"name": "BIG"})
    jstream.done("pub", "BIG", "x" * 1000, "--count", 2000)
    with jstream.start("stream", "view", "BIG", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout.readline().startswith(b"[1] Subject: BIG")
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_starting_imports_neither_arrow_nor_spark() -> None:
    script = (
        "import sys, spark_stream.cli.app\n"
        "try: spark_stream.cli.app.app(['stream', 'ls', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyarrow', 'numpy', 'pydantic', 'pyspark', 'storage_core'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=Path(__file__).parents[3])


# What a command that reads metadata alone does without: other packages, and what reads, writes and repairs messages.
NOT_FOR_METADATA = {
    *("pyarrow", "pandas", "pyspark", "pydantic", "jinja2", "rich", "starlette", "obstore"),
    *("storage_core.comparison", "storage_core.foreign", "storage_core.block.reader", "storage_core.block.writer"),
    *("storage_core.store.writing.appends", "storage_core.store.reading.reading", "storage_core.store.ingest"),
    *("storage_core.store.reading.plan", "storage_core.store.ensemble.creation"),
    *("storage_core.store.maintenance.maintenance", "storage_core.store.recovery.repair"),
}


METADATA_COMMANDS = (
    *("stream ls", "stream info ORDERS", "stream report", "store info", "cluster info", "events", "check"),
    *("consumer ls ORDERS", "consumer info ORDERS billing", "consumer report", "context ls"),
)


def test_what_reads_metadata_alone_does_not_load_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [tmp_path / name for name in ("a", "b", "c")]
    with Store.create(volumes) as store:
        stream = store.add_stream({"name": "ORDERS"})
        stream.publish("ORDERS", b"1")
        stream.add_consumer({"name": "billing"})
    monkeypatch.setenv("JSTREAM_STORE", str(volumes[0]))
    script = (
        "import sys, spark_stream.cli.app\n"
        f"for words in {METADATA_COMMANDS}:\n"
        "    try: spark_stream.cli.app.app([*words.split(), '--json'])\n"
        "    except SystemExit as stop: assert not stop.code, words\n"
        f"    heavy = {NOT_FOR_METADATA} & set(sys.modules)\n"
        "    assert not heavy, f'{words} imports {heavy}'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=Path(__file__).parents[3])


def test_numpy_starts_no_thread_per_core_and_what_a_command_starts_is_not_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.create(tmp_path / "store").close()
    monkeypatch.setenv("JSTREAM_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    script = (
        "import os, sys, threading, spark_stream.cli.app\n"
        "try: spark_stream.cli.app.app(['stream', 'ls', '--json'])\n"
        "except SystemExit: pass\n"
        "of_others = len(os.listdir('/proc/self/task')) - threading.active_count()\n"
        "sys.exit(of_others or 'OPENBLAS_NUM_THREADS' in os.environ or 'numpy' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=Path(__file__).parents[3])
