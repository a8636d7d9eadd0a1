"""A server of objects that fails as a test says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.objects.server import Faults, serving


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def options(s3_root: Path, faults: Faults) -> Iterator[dict[str, str]]:
    """The storage options of the server that `faults` rules."""
    with serving(s3_root, faults) as storage_options:
        yield storage_options
