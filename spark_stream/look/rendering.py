"""Templates to HTML and SVG. Everything that comes in is escaped, but for what was made here before."""

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from storage_core import notebook

LOOK = "look.css"


def render(template: str, **values: Any) -> Markup:
    """Return a template of `look/templates` with its values."""
    return Markup(_environment().get_template(template).render(values))


@cache
def stylesheet(name: str) -> Markup:
    """Return LOOK (colours and charts, which notebooks have too) or `page.css` (pages to read)."""
    if name == LOOK:
        return Markup(notebook.stylesheet())
    return Markup(resources.files("spark_stream.look").joinpath(name).read_text("utf-8"))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("spark_stream.look"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["stylesheet"] = stylesheet
    return made
