"""Which store a command works on where its words name none, and the names that a user gave to stores.

The nearest one counts: `--store` after the verb, `--store` before it, the variable JSTREAM_STORE, the file jstream.toml
of the current folder, the context that the user selected. Wherever volumes are named, `@NAME` stands for a context.

Contexts are in contexts.json of the user's folder of settings: {"selected": NAME or null, "contexts": {NAME: [PATH]}}.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_stream.cli.failures import CommandFailed, WrongUsage, nearest

STORE_VARIABLE = "JSTREAM_STORE"
FOLDER_FILE = "jstream.toml"
NAME_MARK = "@"


@dataclass
class Contexts:
    """The stores that a user has named. Invariant: `selected` is a key of `stores`, or None."""

    stores: dict[str, list[str]] = field(default_factory=dict)  # volumes, absolute
    selected: str | None = None

    def volumes(self, name: str) -> str:
        """Return the volumes of a context, comma-separated. Raises WrongUsage for one that is not there."""
        if name not in self.stores:
            raise WrongUsage(f"no context {name!r}{nearest(name, list(self.stores))} (`jstream context ls` lists them)")
        return ",".join(self.stores[name])


def default_store() -> str:
    """Return the volumes of the store that no word names; empty if there is none."""
    variable = os.environ.get(STORE_VARIABLE, "")
    if variable:
        return volumes_of(variable)
    return _of_the_folder() or _of_the_user()


def volumes_of(text: str) -> str:
    """Return the volumes that a text means: those of a context for `@NAME`, else the text itself."""
    return load_contexts().volumes(text[1:]) if text.startswith(NAME_MARK) else text


def load_contexts() -> Contexts:
    """Return the contexts of this user. Raises CommandFailed if their file holds anything else."""
    file = contexts_file()
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return Contexts()
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}; remove it, and add your contexts again") from error
    if not _is_contexts(content):
        raise CommandFailed(f"{file} does not hold contexts; remove it, and add your contexts again")
    return Contexts(content["contexts"], content["selected"])


def save_contexts(contexts: Contexts) -> None:
    """Replace the user's file of contexts, whole or not at all."""
    import tempfile

    file = contexts_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"selected": contexts.selected, "contexts": contexts.stores}, indent=2) + "\n"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as written:
        try:
            written.write(text)
            written.flush()
            os.replace(written.name, file)
        except BaseException:
            os.unlink(written.name)
            raise


def contexts_file() -> Path:
    """Return where this user's contexts are, by the rules of XDG."""
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(settings) if os.path.isabs(settings) else Path.home() / ".config"
    return folder / "jstream" / "contexts.json"


def _of_the_user() -> str:
    contexts = load_contexts()
    return contexts.volumes(contexts.selected) if contexts.selected is not None else ""


def _of_the_folder() -> str:
    """Return the volumes that jstream.toml names, which are meant from its folder; empty if there is no such file."""
    file = Path(FOLDER_FILE)
    if not file.exists():
        return ""
    from spark_stream.pipelines.toml import check_keys, place_of, read_toml, substitute

    table = substitute(file, read_toml(file))
    check_keys(file, "", table, ["store"])
    volumes = table.get("store")
    if isinstance(volumes, str) and volumes.startswith(NAME_MARK):
        return volumes_of(volumes)
    named = volumes.split(",") if isinstance(volumes, str) else volumes
    if (
        not isinstance(named, list)
        or not named
        or not all(isinstance(volume, str) and volume.strip() for volume in named)
    ):
        raise WrongUsage(f'{file}: store: {volumes!r} names no volumes; write store = ["disk-1", "disk-2", "disk-3"]')
    return ",".join(place_of(file.absolute(), "store", volume.strip(), remote=True) for volume in named)


def _is_contexts(content: Any) -> bool:
    if not isinstance(content, dict) or set(content) != {"selected", "contexts"}:
        return False
    stores, selected = content["contexts"], content["selected"]
    return (
        isinstance(stores, dict)
        and all(isinstance(paths, list) and all(isinstance(path, str) for path in paths) for paths in stores.values())
        and (selected is None or (isinstance(selected, str) and selected in stores))
    )
