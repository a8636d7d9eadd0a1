"""The colours that stand in look.css: told from their ground, and from each other, by everybody; the templates."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from spark_stream.look.charts import steps
from spark_stream.look.rendering import stylesheet

STATES = ("current", "behind", "damaged", "missing", "different", "skipped")
GROUNDS = ("ground", "raised")
TEXTS = ("ink", "muted")
CONTRAST_MIN = 4.5  # WCAG 2.2, 1.4.3 (AA): text; what is no text needs 3 (1.4.11)
DISTANCE_MIN = 10  # CIE 1976; about 2 are just seen
# Who sees how, in linear RGB. Source: Machado, Oliveira, Fernandes (2009), severity 1.0.
SIGHTS = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
PAIR = re.compile(r"--(\w+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")


def colours(scheme: str) -> dict[str, np.ndarray]:
    """Return the colours of look.css by name, in linear RGB."""
    found = {name: (light, dark)[scheme == "dark"] for name, light, dark in PAIR.findall(stylesheet("look.css"))}
    return {name: linear(colour) for name, colour in found.items()}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(colour: np.ndarray, other: np.ndarray) -> float:
    """Return the contrast ratio of WCAG."""
    darker, lighter = sorted(float((TO_XYZ @ linear)[1]) for linear in (colour, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(colour: np.ndarray) -> np.ndarray:
    scaled = TO_XYZ @ np.clip(colour, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read_on_every_ground_and_told_from_the_others(scheme: str) -> None:
    named = colours(scheme)
    assert {*STATES, *GROUNDS, *TEXTS, "line"} == set(named)
    contrasts = {
        (name, ground): contrast(named[name], named[ground]) for name in (*STATES, *TEXTS) for ground in GROUNDS
    }
    assert {pair: ratio for pair, ratio in contrasts.items() if ratio < CONTRAST_MIN} == {}
    distances = {
        (first, second, sight): float(np.linalg.norm(lab(seen @ named[first]) - lab(seen @ named[second])))
        for first, second in itertools.combinations(STATES, 2)
        for sight, seen in SIGHTS.items()
    }
    assert {pair: distance for pair, distance in distances.items() if distance < DISTANCE_MIN} == {}


def test_styles_use_the_colours_by_name_alone_and_can_stand_in_an_svg() -> None:
    named = set(colours("light"))
    for name in ("look.css", "page.css"):
        style = stylesheet(name)
        rules = PAIR.sub("", style)
        assert set(re.findall(r"var\(--(\w+)\)", rules)) <= named
        assert re.findall(r"#[0-9a-f]{3,6}\b", rules) == []
        assert "<" not in style and "url(" not in style
    for state in STATES:
        assert f"rect.{state} " in stylesheet("look.css")


def test_a_chart_of_steps_begins_and_ends_at_its_edges_and_escapes_its_words() -> None:
    chart = steps("Lag <now>", "seconds", [(0, 200), (5, 50), (10, 0)], [(2.5, "a & b")])
    drawn = ElementTree.fromstring(chart)
    svg = "{http://www.w3.org/2000/svg}"
    (path,) = drawn.iter(f"{svg}path")
    assert path.attrib["d"] == "M0 0.00 H50.00 V75.00 H100.00 V100.00"
    texts = [text.text for text in drawn.iter(f"{svg}text")]
    assert texts == ["Lag <now>", "200", "a & b", "0", "seconds", "10"]
    flat = ElementTree.fromstring(steps("Lag", "seconds", [(0, 0), (0, 0)], []))
    assert next(flat.iter(f"{svg}path")).attrib["d"] == "M0 100.00 H0.00 V100.00"
