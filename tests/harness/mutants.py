"""Known mistakes, put into the real code at run time, so that tests can show that they notice them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Replacement = tuple[Any, str, Any]  # owner, name, what takes its place
Mutants = Mapping[str, Callable[[], list[Replacement]]]


def maker_of(mutants: Mutants) -> Callable[[str], AbstractContextManager[None]]:
    """Return `made(name)`, which makes the mistake of that name while its block runs."""

    @contextmanager
    def made(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in mutants[name]():
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield

    return made
