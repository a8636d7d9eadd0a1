"""`frozen.replace` does what that of dataclasses does."""

import dataclasses
from dataclasses import dataclass, field

import pytest

from storage_core.frozen import replace
from storage_core.metadata.state import StoreState, StreamState


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 2
    many: tuple[int, ...] = field(default_factory=tuple)


def test_what_is_not_named_stays_the_very_object() -> None:
    many = (1, 2, 3)
    before = Pair(1, 5, many)
    after = replace(before, left=7)
    assert after == dataclasses.replace(before, left=7) == Pair(7, 5, (1, 2, 3))
    assert after.many is many and before.left == 1


@pytest.mark.parametrize("kind", [StoreState, StreamState])
def test_every_field_of_a_state_can_be_replaced(kind: type) -> None:
    names = [each.name for each in dataclasses.fields(kind)]
    value = kind(*names)
    for name in names:
        assert replace(value, **{name: 0}) == dataclasses.replace(value, **{name: 0})


def test_a_field_that_there_is_not_is_a_bug_of_ours() -> None:
    with pytest.raises(KeyError, match="middle"):
        replace(Pair(1), **{"middle": 3})
