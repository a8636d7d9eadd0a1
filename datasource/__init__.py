"""The data source `jstream`. What users call of it is here; nothing is loaded before it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasource.acknowledging import acknowledge

__all__ = ["acknowledge"]


def __getattr__(name: str) -> Any:
    if name != "acknowledge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from datasource.acknowledging import acknowledge

    return acknowledge
