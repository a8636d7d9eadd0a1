"""`jstream ui`: what it refuses, and how it begins and ends; the pages are in tests/spark_stream/ui."""

import json
import signal
from pathlib import Path
from urllib.request import urlopen


def test_the_command_refuses_open_addresses_weak_tokens_taken_ports_and_no_store(jstream, tmp_path: Path) -> None:
    refused = jstream("ui", "--listen", "0.0.0.0", "--port", "0")
    assert refused.code == 2
    assert "--token-file" in refused.err
    weak = tmp_path / "token"
    weak.write_text("short\n")
    assert "at least 16 letters" in jstream("ui", "--token-file", weak).err
    assert jstream("ui", with_store=False).code == 2
    assert jstream("ui", "--store", tmp_path / "nothing", "--port", "0").code == 1
    with jstream.start("ui", "--port", "0") as process:
        line = process.stderr.readline().decode()
        port = line.split("127.0.0.1:")[1].split("/")[0]
        taken = jstream("ui", "--port", port)
        assert taken.code == 1
        assert port in taken.err
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_the_stores_of_contexts_are_served_below_their_names(jstream, tmp_path: Path) -> None:
    assert jstream("store", "create", tmp_path / "test").code == 0
    assert jstream("context", "add", "test", tmp_path / "test").code == 0
    unknown = jstream("ui", "--context", "tset", "--port", "0")
    assert unknown.code == 2 and "no context 'tset'; did you mean 'test'?" in unknown.err
    with jstream.start("ui", "--port", "0", "--context", "test") as process:
        address = process.stderr.readline().decode().split()[-3]
        with urlopen(f"{address}@test/api/overview", timeout=60) as answer:
            assert json.load(answer)["health"]["state"] == "ok"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
