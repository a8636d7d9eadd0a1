"""jstream's packages: they have common names, which a folder of a user's can take."""

import importlib
import importlib.util
import os
import sys
from typing import Any

HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
REQUIRED = ("datasource", "storage_core")  # what Spark's processes import; they lie beside this package
PACKAGES = (*REQUIRED, "spark_stream")  # everything of ours that a folder of the same name can hide


def check_packages() -> None:
    """Raise ImportError naming whatever takes the place of one of our packages on Python's path."""
    for name in PACKAGES:
        place = _place(name)
        if place is None and name in REQUIRED:
            raise ImportError(f"jstream is not installed completely: its package {name!r} is missing from {HOME}")
        if place is not None and os.path.dirname(place) != HOME:
            raise ImportError(
                f"{place} is in the way: it takes the name of jstream's own package {name!r} at "
                f"{os.path.join(HOME, name)}. Rename it, start from another folder, or take its parent folder from "
                "PYTHONPATH"
            )


def _place(name: str) -> str | None:
    """Return the folder (or the file, of a plain module) that Python takes for a top-level name; None if there is none.

    Nothing is imported: what is in the way may do anything when it runs.
    """
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    return os.path.realpath(places[0] if places else spec.origin or name)


def own(module: str) -> Any:
    """Import a module of ours; raises ImportError with the place if something else has its package's name."""
    check_packages()
    return importlib.import_module(module)
