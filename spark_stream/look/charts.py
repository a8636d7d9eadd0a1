"""Charts as inline SVG in one style: as wide as their place, with text that keeps its size."""

from collections.abc import Sequence

from markupsafe import Markup

from spark_stream.look.rendering import render


def steps(
    title: str, x_label: str, points: Sequence[tuple[float, float]], marks: Sequence[tuple[float, str]]
) -> Markup:
    """Return a line of what holds from one point on until the next, `(x, y)`; `marks` are events at an x."""
    x_max, y_max = max(x for x, _ in points) or 1, max(y for _, y in points) or 1
    corners = [f"M0 {_place(y_max - points[0][1], y_max)}"]
    for x, y in points[1:]:
        corners.append(f"H{_place(x, x_max)} V{_place(y_max - y, y_max)}")
    return render(
        "steps.svg",
        title=title,
        x_label=x_label,
        x_max=f"{x_max:,.0f}",
        y_max=f"{y_max:,.0f}",
        path=" ".join(corners),
        marks=[(_place(x, x_max), text) for x, text in marks],
    )


def _place(value: float, whole: float) -> str:
    return f"{100 * value / whole:.2f}"
