"""Commands on volumes in object stores: their settings, and what is refused there so far."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from harness.objects.server import SECRET
from typer.testing import CliRunner

from spark_stream.cli.app import app
from storage_core import Store
from storage_core.store.volume import object_probe

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "object-stores.md"


def words_of(options: dict[str, str]) -> list[str]:
    return [word for key, value in options.items() for word in ("--storage-option", f"{key}={value}")]


def test_settings_stand_anywhere_and_are_never_printed(buckets: list[str], s3_options: dict[str, str]) -> None:
    words = words_of(s3_options)
    made = CliRunner().invoke(app, ["store", "create", *buckets, *words])
    assert made.exit_code == 0, made.output
    added = CliRunner().invoke(
        app, [*words, "stream", "add", "ORDERS", "--subjects", "orders.>", "--store", buckets[0]]
    )
    assert added.exit_code == 0, added.output
    sent = CliRunner().invoke(app, ["pub", *words, "--store", buckets[1], "--", "orders.new", "--storage-option"])
    assert (sent.exit_code, sent.output) == (0, "ORDERS 1\n")
    with Store.open(buckets[2], storage_options=s3_options) as store:
        assert store.stream("ORDERS").get(1).data == b"--storage-option"
    shown = CliRunner().invoke(app, ["cluster", "info", "--store", buckets[0], *words]).output
    assert SECRET not in made.output + added.output + shown and buckets[0] in shown
    other = CliRunner().invoke(app, ["stream", "ls", "--store", buckets[0]], env={"AWS_ENDPOINT_URL": None})
    assert other.exit_code == 1, "settings of one command are not those of the next"


def test_settings_without_a_value_and_for_folders_are_wrong_words(tmp_path: Path) -> None:
    Store.create(tmp_path / "shop").close()
    for words in (["--storage-option", SECRET], ["--storage-option", f"aws_secret_access_key={SECRET}"]):
        refused = CliRunner().invoke(app, ["stream", "ls", "--store", str(tmp_path / "shop"), *words])
        assert refused.exit_code == 2 and SECRET not in refused.output


def test_backup_is_restored_onto_buckets_and_adoption_there_is_refused(
    buckets: list[str], s3_options: dict[str, str], tmp_path: Path
) -> None:
    backup, words = str(tmp_path / "backup"), words_of(s3_options)
    with Store.create(buckets[0], storage_options=s3_options) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        store.backup(backup)
    restored = CliRunner().invoke(app, ["restore", backup, buckets[1], "--force", *words])
    assert restored.exit_code == 0, restored.output
    assert Store.open(buckets[1], storage_options=s3_options).streams() == ["ORDERS"]
    refused = CliRunner().invoke(app, ["repair", "--adopt", "--store", buckets[1], *words])
    assert refused.exit_code == 1, refused.output
    assert "JSTREAM_REQUIREMENT" in refused.output and "restore a backup" in refused.output


def test_pipeline_takes_its_settings_from_the_command_as_from_the_environment(
    buckets: list[str], s3_options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in s3_options:
        monkeypatch.setenv(key.upper(), "")  # and takes away afterwards what the command puts there
    with Store.create(buckets, storage_options=s3_options) as store:
        store.add_stream({"name": "ORDERS", "subjects": ["orders.>"]})
        store.stream("ORDERS").append([{"subject": "orders.new", "data": b"x"}] * 3)
    file = tmp_path / "orders.toml"
    source = f'[source]\nstore = {json.dumps(buckets)}\nstream = "ORDERS"\n'
    file.write_text(f'checkpoint = "{buckets[2].removesuffix("shop")}check"\n{source}[sink]\nkind = "console"\n')
    checked = CliRunner().invoke(app, ["etl", "check", str(file), "--quick", *words_of(s3_options)])
    assert checked.exit_code == 0 and "stream ORDERS, 3 messages" in checked.output
    status = CliRunner().invoke(app, ["etl", "status", str(file), "--json"])
    assert status.exit_code == 0, status.output
    found = json.loads(status.stdout)
    assert found["running"] is None and found["streams"][0]["lag"] == 3
    assert SECRET not in checked.output + status.output


def test_the_buckets_of_a_laptop_are_those_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(object_probe, "PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    recipe = re.search(r"^```\n(mkdir .*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert recipe is not None and "9000" in recipe[1]
    make_buckets, start, *others = recipe[1].replace("9000", str(port)).splitlines()
    subprocess.run(make_buckets, shell=True, check=True)
    server = subprocess.Popen(shlex.split(start.partition(" >")[0]), stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        assert any(str(port).encode() in line for line in server.stderr)  # it listens
        threading.Thread(target=server.stderr.read, daemon=True).start()  # it writes a line per request
        for line in others:
            verb, *words = shlex.split(line, comments=True)
            if verb == "export":
                for name, _, value in (word.partition("=") for word in words):
                    monkeypatch.setenv(name, value)
            elif verb == "rm":
                shutil.rmtree(words[-1])
            else:
                outcome = CliRunner().invoke(app, words)
                assert outcome.exit_code == 0, (line, outcome.output)
        assert "all repaired" in outcome.output
    finally:
        server.kill()
        server.wait(60)
