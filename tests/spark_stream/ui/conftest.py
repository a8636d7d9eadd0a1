"""A store, and `jstream ui` on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.served_ui import Browser, make_orders, served

from storage_core import Store


@pytest.fixture
def serve() -> Iterator[Callable[..., Browser]]:
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(served(*arguments, **options))


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"disk-{number}" for number in (1, 2, 3)]


@pytest.fixture
def store(volumes: list[Path]) -> Iterator[Store]:
    """A store with a stream of six blocks of ten messages, holes in it, and two consumers."""
    with Store.create([str(volume) for volume in volumes]) as store:
        make_orders(store)
        yield store
