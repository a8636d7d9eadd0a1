"""A variable has the noun of what it holds, and so has a parameter. Fields of classes are formats: not asked."""

import ast
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
