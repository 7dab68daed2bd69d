"""Colours that everybody can tell apart, by formulas of others: CIEDE2000, deuteranopia, contrast."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.report.colours import COLOURS, DARK, MARKERS, POLICIES, SCORES, SYMBOLS, looks, places
from kvbench.support.plugins import items

ROOT = Path(__file__).resolve().parents[2]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
"""Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
table 1, severity 1.0; for linear RGB."""
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
"""IEC 61966-2-1 (sRGB)."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratios = np.array(XYZ) @ rgb / (0.95047, 1, 1.08883)
    x, y, z = np.where(ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(first: np.ndarray, second: np.ndarray) -> float:
    """Sharma, Wu and Dalal, "The CIEDE2000 Color-Difference Formula" (2005)."""
    chroma = np.mean([np.hypot(*colour[1:]) for colour in (first, second)])
    stretch = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25**7))
    (l1, a1, b1), (l2, a2, b2) = (colour * (1, stretch, 1) for colour in (first, second))
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    light, c, hue = (l1 + l2) / 2, (c1 + c2) / 2, (h1 + turn / 2) % 360
    t = 1 + sum(k * np.cos(np.radians(n * hue + s)) for k, n, s in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6)))
    t -= 0.2 * np.cos(np.radians(4 * hue - 63))
    sl, sc, sh = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2), 1 + 0.045 * c, 1 + 0.015 * c * t
    rotation = -2 * np.sqrt(c**7 / (c**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return np.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rotation * dc / sc * dh / sh)


@pytest.mark.parametrize(("colours", "apart", "apart_without_green"), [(COLOURS, 20, 12), (DARK, 19.5, 11.5)])
def test_colours_differ_with_and_without_deuteranopia_and_one_is_blue(colours, apart, apart_without_green) -> None:
    """Hues of CIELAB near that of pure blue; greyish ones have another name."""
    assert len(colours) == len(set(colours)) == 12
    for first, second in combinations(map(linear, colours), 2):
        assert ciede2000(lab(first), lab(second)) > apart
        seen = (np.clip(np.array(DEUTERANOPIA) @ colour, 0, 1) for colour in (first, second))
        assert ciede2000(*map(lab, seen)) > apart_without_green
    places = [lab(linear(colour)) for colour in colours]
    assert sum(np.hypot(a, b) > 30 and 225 < np.degrees(np.arctan2(b, a)) % 360 < 305 for _, a, b in places) == 1
    hues = [[np.arctan2(*lab(linear(colour))[:0:-1]) for colour in each] for each in (COLOURS, colours)]
    assert np.cos(np.subtract(*hues)).min() > np.cos(np.radians(25)), "a colour keeps its hue on a dark page"


STATED = [name for name in places() if name not in (*POLICIES, *SCORES)]
"""Policies and scores whose files name their place."""
MORE = ("mine", "yours", "snapkv@common", "snapkv window=16", "kvzip@common", "ada_pyramidkv sink=4")


@given(st.sets(st.sampled_from((*POLICIES, *STATED, *MORE)), min_size=1, max_size=12))
def test_up_to_twelve_policies_have_twelve_colours(names: set[str]) -> None:
    """And the first of the list keep theirs beside all others."""
    colours = {name: look.colour for name, look in looks(sorted(names)).items()}
    assert len({*colours.values()}) == len(names)
    assert all(colours[name] == COLOURS[i] for i, name in enumerate(POLICIES[: len(COLOURS)]) if name in names)


def test_a_label_has_the_colour_of_its_policy() -> None:
    """Unless the plain name is there, or another label of it."""
    alone = looks(["snapkv@common", "pyramidkv@common window=16", "kvzip"])
    plain = looks(["snapkv", "pyramidkv", "kvzip"])
    assert [look.colour for look in alone.values()] == [look.colour for look in plain.values()]
    both = looks(["snapkv window=16", "snapkv@common", "snapkv"])
    assert both["snapkv"] == plain["snapkv"] and len({look.colour for look in both.values()}) == 3


def test_what_is_alike_in_grey_has_another_marker() -> None:
    """Print without colour keeps the lightness alone; no two of the 12 have one marker, so markers tell them apart."""
    assert len(set(MARKERS)) == len(set(SYMBOLS)) == 12
    for names in (POLICIES, SCORES):
        styles = [*looks(names).values()]
        greys = [lab(linear(style.colour))[0] for style in styles]
        alike = [(a, b) for (a, x), (b, y) in combinations(zip(styles, greys, strict=True), 2) if abs(x - y) < 5]
        assert alike
        assert all(a.marker != b.marker for a, b in alike)


@pytest.mark.parametrize(("page", "colours", "contrast"), [("#ffffff", COLOURS, 3), ("#0d1117", DARK, 5)])
def test_colours_stand_out_on_both_pages(page: str, colours: tuple[str, ...], contrast: float) -> None:
    """WCAG 2.2, 1.4.11: graphical objects have a contrast of 3:1."""
    back = np.array(XYZ)[1] @ linear(page)
    assert page in (ROOT / "kvbench/report/formats/page.css").read_text()
    for colour in colours:
        low, high = sorted((back, np.array(XYZ)[1] @ linear(colour)))
        assert (high + 0.05) / (low + 0.05) >= contrast


def test_every_method_of_conf_has_its_own_look() -> None:
    """And keeps it, whatever else a figure shows."""
    for group, listed in (("policy", POLICIES), ("score", SCORES)):
        names = {*items(group)} - {"full"}
        assert {*listed} - {""} <= names <= {*listed, *STATED}
        assert len({(look.colour, look.marker) for look in looks(names).values()}) == len(names)
        assert all(looks([name, "mine"])[name] == looks(sorted(names))[name] for name in names)
    assert all(looks(POLICIES)[name] == looks(SCORES)[name] for name in {*POLICIES} & {*SCORES})
    mine = looks(f"plugin_{i}" for i in range(12)).values()
    assert len({look.colour for look in mine}) == 12
