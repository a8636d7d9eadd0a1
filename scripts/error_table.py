"""Print docs/guide/errors.md, made of the classes in storage_core/errors.py and spark_stream/pipelines/errors.py.

.venv/bin/python scripts/error_table.py > docs/guide/errors.md
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spark_stream.pipelines import errors as pipeline_errors
from storage_core import errors
from storage_core.errors import StorageError

HEAD = """# Errors

What a program can catch. Codes keep their meaning, the words of messages may change. Spark and the command line show
the code first: `[JSTREAM_STREAM_NOT_FOUND] no stream 'ORDRES' in /shop; did you mean 'ORDERS'?`. What to do:
[troubleshooting](troubleshooting.md).

```python
from pyspark_jstream import Store, errors

with Store.open_or_create("shop") as store:
    try:
        store.stream("ORDRES")
    except errors.NotFoundError as error:
        assert error.code == "JSTREAM_STREAM_NOT_FOUND"
        assert error.fields["stream"] == "ORDRES"
```

All are `StorageError`. `error.fields` has the known fields, also of the class above; each is an attribute, too.
`to_json()` has code, text and fields. Wrong arguments and configurations are `ValueError`; so are
`OptionError` and `DefinitionError`. Those of pipelines are in `spark_stream.pipelines.errors`.

<div class="stacks" markdown>

| code | class | meaning | fields |
|---|---|---|---|
"""


def page() -> str:
    """Return the page: a row for each class."""
    return HEAD + "".join(_row(kind) for kind in classes()) + "\n</div>\n"


def classes() -> Iterator[type[StorageError]]:
    """Yield the classes in the order in which the modules have them."""
    for module in (errors, pipeline_errors):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, StorageError) and kind.__module__ == module.__name__:
                yield kind


def _row(kind: type[StorageError]) -> str:
    above = kind.__bases__[0]
    name = f"`{kind.__name__}`" + (f", a `{above.__name__}`" if above not in (StorageError, Exception) else "")
    meaning = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    inherited = getattr(above, "field_names", ())
    fields = ", ".join(f"`{field}`" for field in kind.field_names if field not in inherited)
    return f"| `{kind.code}` | {name} | {meaning} | {fields} |\n"


if __name__ == "__main__":
    print(page(), end="")
