"""Names: a variable has the noun of what it holds, and a class or module of the store has its name alone.

Fields of classes are formats, and not looked at.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("storage_core", "datasource", "spark_stream")
VAGUE = {"one", "ones", "found", "told", "there", "gone"}


def vague_names(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {field.target for class_ in classes for field in class_.body if isinstance(field, ast.AnnAssign)}
    for node in ast.walk(tree):
        is_variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields
        name = node.arg if isinstance(node, ast.arg) else node.id if is_variable else getattr(node, "name", None)
        if name in VAGUE:
            yield node.lineno, name


def test_no_variable_is_called_one_or_found() -> None:
    assert list(vague_names("def tell(told):\n    return [one for one in told]")) == [(1, "told"), (2, "one")]
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    vague = [f"{path}:{line}: {name}" for path in files for line, name in vague_names(path.read_text("utf-8"))]
    assert not vague, "\n".join(vague)


# Readers and clients of other servers name what these servers have, so each of them is looked at by itself.
AREAS = ("foreign/nats", "foreign/stan", "foreign", "live", "")
TWICE = {
    "appends": "metadata.appends applies the command that writing.appends makes",
    "files": "files is the interface and local disks, objects.files the same for object stores",
    "merging": "metadata.merging applies the command that maintenance.merging makes",
    "retention": "metadata.retention applies the command that writing.retention makes",
    "state": "metadata.state is that of the store, volume.state that of one volume",
}


def test_a_class_and_a_module_of_the_store_have_their_names_alone() -> None:
    classes: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
    modules: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
    for path in sorted((ROOT / "storage_core").rglob("*.py")):
        area = next(area for area in AREAS if path.is_relative_to(ROOT / "storage_core" / area))
        modules[area][path.stem] += path.stem != "__init__"
        tree = ast.parse(path.read_text("utf-8"))
        names = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        classes[area].update(name for name in names if not name.startswith("_"))
    assert sum(classes[""].values()) > 200
    assert {name for names in classes.values() for name, count in names.items() if count > 1} == set()
    assert {name for names in modules.values() for name, count in names.items() if count > 1} == TWICE.keys()
