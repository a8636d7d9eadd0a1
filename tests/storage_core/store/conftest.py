"""Tests run on volumes on disks; those marked `buckets` in buckets of a server as well.

What differs there lies below the log of a volume: tests/storage_core/objects, store/volume/test_object_log.py and
simulation/test_object_stores.py are about that alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.objects.server import Server
from harness.processes import Machine

from storage_core.store.volume import object_probe


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("buckets") is not None:
        metafunc.parametrize("volumes", ["disks", "buckets"], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def volumes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the volumes of simulated machines are."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", "disks") == "buckets":
            root: Path = request.getfixturevalue("s3_root")
            patch.setattr(object_probe, "PATIENCE_S", 0.0)
            patch.setattr(object_probe, "RACER_COUNT", 2)
            patch.setattr(Machine, "server", Server(root, request.getfixturevalue("s3_options")))
        yield
