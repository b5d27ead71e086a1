"""Colours of the console that stand side by side can be told apart, by colour-blind people too."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import barnabas.console
from barnabas.console.charts import Line, line_chart

# Machado, Oliveira and Fernandes 2009, severity 1.0: what dichromats see, in linear RGB.
VISIONS = {
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
# In CIELAB (CIE 1976); 2.3 is just noticeable for patches that touch, thin lines need far more.
DISTANCE_MIN = 20.0
# WCAG 2, of what is no text.
CONTRAST_MIN = 3.0
SERIES = [f"s{number}" for number in range(6)]
CSS = (Path(barnabas.console.__file__).parent / "static" / "console.css").read_text()
THEMES = [
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r"\{([^{}]*--s0:[^{}]*)\}", CSS)
]
LIGHT, DARK = THEMES[0], THEMES[1]


def linear(colour: str) -> list[float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """What somebody sees of it, in CIELAB with D65."""
    rgb = linear(colour)
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in VISIONS[vision]]

    def curve(row: tuple[float, float, float], white: float) -> float:
        share = sum(a * b for a, b in zip(row, seen, strict=True)) / white
        return float(share ** (1 / 3)) if share > 0.008856 else 7.787 * share + 16 / 116

    x = curve((0.4124, 0.3576, 0.1805), 0.95047)
    y = curve((0.2126, 0.7152, 0.0722), 1.0)
    z = curve((0.0193, 0.1192, 0.9505), 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, vision: str) -> float:
    pairs = zip(lab(one, vision), lab(other, vision), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def luminance(colour: str) -> float:
    return sum(a * b for a, b in zip(linear(colour), (0.2126, 0.7152, 0.0722), strict=True))


def test_known_colours_are_as_far_from_each_other_as_others_compute() -> None:
    assert distance("#000000", "#ffffff", "all colours") == pytest.approx(100, abs=0.1)
    # Red and green of the same lightness: what a deuteranope takes for one colour.
    assert distance("#d00000", "#008a00", "all colours") > 100
    assert distance("#a86000", "#7c7c00", "deuteranopia") < 10 < distance("#a86000", "#7c7c00", "tritanopia")


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("names", [SERIES, ["good", "warning", "bad"]], ids=["charts", "marks"])
def test_colours_side_by_side_differ(names: list[str], theme: dict[str, str], vision: str) -> None:
    near = {
        (one, other): round(distance(theme[one], theme[other], vision), 1)
        for one, other in itertools.combinations(names, 2)
    }
    assert {pair: found for pair, found in near.items() if found < DISTANCE_MIN} == {}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_stand_out_from_the_card_behind_them(theme: dict[str, str]) -> None:
    card = luminance(theme["card"])
    for name in SERIES:
        darker, lighter = sorted((card, luminance(theme[name])))
        assert (lighter + 0.05) / (darker + 0.05) >= CONTRAST_MIN, name


def test_the_dark_theme_has_one_palette_however_it_is_chosen() -> None:
    assert len(THEMES) == 3
    assert THEMES[1] == THEMES[2]


def test_every_line_of_a_chart_has_a_colour_and_a_dash_of_its_own() -> None:
    drawn = str(line_chart("Lag", "records", [Line(f"line {number}", [(0, 1.0), (1, 2.0)]) for number in range(9)]))
    used = {int(number) for number in re.findall(r"series-(\d+)", drawn)}
    assert used == set(range(len(SERIES)))
    looks = [re.findall(rf"\.series-{number} \{{ stroke: var\(--s{number}\);(.*?)\}}", CSS) for number in sorted(used)]
    assert all(len(found) == 1 for found in looks)
    assert len({found[0] for found in looks}) == len(SERIES)
