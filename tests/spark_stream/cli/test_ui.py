"""`jstream ui`: what it refuses, and how it begins and ends; the pages are in tests/spark_stream/ui."""

import signal
from pathlib import Path


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
