"""Values: frozen dataclasses of which a change makes another one.

A state of the metadata is made of them, and each command makes some anew. `dataclasses.replace` looks at every field
of a class each time, which took a third of what a command costs.
"""

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # so that the names and types of changes are checked
else:
    from dataclasses import fields

    def replace(value: T, **changes: Any) -> T:
        """Return a value with these fields, and all others as they are: as `dataclasses.replace` does."""
        get, places = _of(type(value))
        values = list(get(value))
        for name, now in changes.items():
            values[places[name]] = now
        return type(value)(*values)

    @cache
    def _of(kind: type) -> tuple[attrgetter, dict[str, int]]:
        """Return what gets the values of all fields of a class, and where each of them is."""
        listed = fields(kind)
        assert len(listed) > 1 and all(field.init and not field.kw_only for field in listed), kind
        names = [field.name for field in listed]
        return attrgetter(*names), {name: at for at, name in enumerate(names)}
