"""The older nats-servers of the tests."""

import sys
from pathlib import Path

import nats_servers


def test_servers_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    for version in nats_servers.VERSIONS:
        place = nats_servers.binary(tmp_path, version)
        place.parent.mkdir(parents=True)
        place.write_text("")
    assert nats_servers.fetch(Path("/no/python"), tmp_path) is None


def test_a_server_that_cannot_be_had_is_told_in_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'import sys; sys.exit(\"one\\nno such release\")'\n")
    python.chmod(0o755)
    assert nats_servers.fetch(python, tmp_path / "servers") == "no such release"
