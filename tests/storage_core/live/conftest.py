"""A running server of each version for tests that only read, and a stream of hostile messages in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.live_server import BINARIES, INSTALLED, LiveServer, live_server


@pytest.fixture(scope="module", params=BINARIES, ids=lambda binary: binary.parents[1].name)
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("nats") / "server", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("nats") / "server", INSTALLED) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that the test may stop."""
    with live_server(tmp_path / "server") as server:
        yield server
