"""docs/papers.md: what is published, ours and a verdict, from the inventory, the outcomes and the reasons."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from pathlib import Path

from papers.inventory import ALLOWED, ALLOWED_POINTS, Item, Paper, at_robots
from papers.outcome import Found, Outcome

REASONS = Path(__file__).with_name("reasons.toml")
REPRODUCED, DIFFERS, CANNOT, NOT_YET, NOTHING = (
    "reproduced",
    "differs",
    "cannot be had here",
    "not yet measured",
    "nothing to measure",
)
CALIBRATED, FITTED = "calibrated", "fitted"
# By the last word of a quantity.
UNITS = {
    "percent": "%",
    "mbps": "Mbit/s",
    "ms": "ms",
    "watts": "W",
    "packets": "packets",
    "ratio": "",
    "max": "",
    "probability": "",
}

HEAD = f"""\
# The papers beside us

Every figure and table of [Deng 2022](sources.md#deng-2022), [Dust](sources.md#dust) and [Lee](sources.md#lee): the
published value, ours, and a verdict. This page is written by

    python studies/papers/run.py --write docs/papers.md

from three files in `studies/papers`: `published.toml` (published values), `measured.json` (ours) and `reasons.toml`
(why they differ). Our copies of the papers are texts without pictures, so no value was read off a curve.

*Reproduced*: ours is within {100 * ALLOWED:g} % of the published value, or {ALLOWED_POINTS:g} points for a share; what
a paper says in words holds. *Calibrated*: the model was fitted to this value ([why](calibration.md)), so it shows
nothing. *Fitted*: assumptions that the paper leaves open were chosen for this value, so it shows only that they exist.
All other figures of the simulated testbed are predictions. ± is one standard deviation over runs.

"""


def page(papers: list[Paper], outcomes: dict[str, Outcome]) -> str:
    """The whole page."""
    reasons = {
        f"{paper}.{item}": text
        for paper, items in tomllib.loads(REASONS.read_text()).items()
        for item, text in items.items()
    }
    text = HEAD
    for paper in papers:
        text += f"| [{paper.source}]({paper.link}) | | how | verdict |\n| --- | --- | --- | --- |\n"
        for item in paper.items:
            outcome = outcomes.get(item.key)
            ground = outcome.ground if outcome else ""
            text += f"| {_linked(item)} | {item.title} | {ground} | {verdict(item, outcome)} |\n"
        text += "\n"
    for paper in papers:
        text += f"## {paper.source}\n\n"
        for item in paper.items:
            if not (item.nothing or item.cannot):
                text += _section(item, outcomes.get(item.key), reasons.get(item.key, ""))
    return text.rstrip() + "\n"


def _heading(item: Item) -> str:
    """Paper and item, so that no two headings are the same."""
    return f"{item.key.split('.')[0].capitalize()}, {item.name[0].lower()}{item.name[1:]}"


def _linked(item: Item) -> str:
    if item.nothing or item.cannot:
        return item.name
    anchor = _heading(item).lower().replace(",", "").replace(".", "").replace(" ", "-")
    return f"[{item.name}](#{anchor})"


def verdicts(item: Item, outcome: Outcome | None) -> Counter[str]:
    """The verdicts of all its figures and claims."""
    found: Counter[str] = Counter()
    for quantity, cases in item.figures.items():
        for case in cases:
            found[_of_figure(item, outcome, quantity, case)] += 1
    for claim in item.claims:
        found[_of_claim(outcome, claim)] += 1
    return found


def verdict(item: Item, outcome: Outcome | None) -> str:
    """In one phrase."""
    if item.nothing:
        return f"{NOTHING}: {item.nothing}"
    if item.cannot:
        return f"{CANNOT}: {item.cannot}"
    found = verdicts(item, outcome)
    order = [word for word in (REPRODUCED, CALIBRATED, FITTED, DIFFERS, CANNOT, NOT_YET) if found[word]]
    if len(order) == 1:
        return order[0]
    return ", ".join(f"{found[word]} {'differ' if word == DIFFERS and found[word] > 1 else word}" for word in order)


def _of_figure(item: Item, outcome: Outcome | None, quantity: str, case: str) -> str:
    ours = outcome.figures.get(quantity, {}).get(case) if outcome else None
    if ours is None or math.isnan(ours.mean):
        return CANNOT if outcome and _why_not(outcome, case) else NOT_YET
    if (quantity, case) in item.calibrated:
        return CALIBRATED
    if (quantity, case) in item.fitted:
        return FITTED
    return REPRODUCED if item.reproduced(quantity, case, ours.mean) else DIFFERS


def _of_claim(outcome: Outcome | None, claim: str) -> str:
    if outcome is None or claim not in outcome.claims:
        return CANNOT if outcome and _why_not(outcome, claim) else NOT_YET
    return REPRODUCED if outcome.claims[claim].holds else DIFFERS


def _why_not(outcome: Outcome, case: str) -> str:
    return next((why for part, why in outcome.cannot.items() if part in case), "")


def _section(item: Item, outcome: Outcome | None, reason: str) -> str:
    text = f"### {_heading(item)}\n\n{item.title}. Published in {item.where}; read from: {item.read_from}.\n\n"
    if outcome:
        text += f"    {outcome.command}\n\n{outcome.ground.capitalize()}: {outcome.effort}.\n\n"
    if item.robots:
        text += "".join(_over_robots(item, outcome, quantity) for quantity in item.figures)
        text += _lines(item, outcome, figures=False)
    else:
        text += _lines(item, outcome, figures=True)
    if reason:
        text += reason.strip() + "\n\n"
    if outcome:
        text += "".join(f"Cannot be had here: {why}.\n\n" for why in dict.fromkeys(outcome.cannot.values()))
        for table in outcome.tables:
            text += f"{table.title}\n\n{markdown(table.titles, table.rows)}\n"
        for name, caption in outcome.charts.items():
            text += f"![{caption}](papers/{name})\n\n"
    return text


def _lines(item: Item, outcome: Outcome | None, *, figures: bool) -> str:
    """What is published beside ours, and below it what only we give numbers of."""
    rows: list[list[str]] = []
    own = outcome.figures if outcome else {}
    for quantity, cases in item.figures.items() if figures else ():
        for case in dict.fromkeys([*cases, *own.get(quantity, {})]):
            rows.append(_line(item, outcome, quantity, case))
    for name, claim in item.claims.items():
        found = outcome.claims.get(name) if outcome else None
        rows.append([f"'{claim}'", "as stated", found.found if found else "-", "", _of_claim(outcome, name)])
    text = markdown(["", "published", "ours", "off by", "verdict"], rows) + "\n" if rows else ""
    more = [quantity for quantity in own if quantity not in item.figures]
    if more:
        names = dict.fromkeys(case for quantity in more for case in own[quantity])
        cells = [[name, *(_shown(own[quantity].get(name), None, "") for quantity in more)] for name in names]
        text += markdown(["", *(f"{_quantity(quantity)}, {_unit(quantity)}" for quantity in more)], cells) + "\n"
    return text


def _line(item: Item, outcome: Outcome | None, quantity: str, case: str) -> list[str]:
    ours = outcome.figures.get(quantity, {}).get(case) if outcome else None
    published = item.figures[quantity].get(case)
    unit, off, word = _unit(quantity), "", ""
    if published is not None:
        word = _of_figure(item, outcome, quantity, case)
        if ours is not None and not math.isnan(ours.mean):
            value = item.off(quantity, case, ours.mean)
            off = f"{value:+.1f} points" if quantity.endswith("_percent") else f"{100 * value:+.1f} %"
    shown = f"{published:g} {unit}".strip() if published is not None else "-"
    return [f"{_quantity(quantity)}, {case}", shown, _shown(ours, published, unit), off, word]


def _over_robots(item: Item, outcome: Outcome | None, quantity: str) -> str:
    """One quantity over the number of robots: two rows for each case."""
    own = outcome.figures.get(quantity, {}) if outcome else {}
    names = dict.fromkeys(case.rpartition(", ")[0] for case in [*item.figures[quantity], *own])
    rows: list[list[str]] = []
    for name in names:
        cases = [at_robots(name, robots) for robots in item.robots]
        published = [item.figures[quantity].get(case) for case in cases]
        if any(value is not None for value in published):
            rows.append([f"{name}, published", *("-" if value is None else f"{value:g}" for value in published)])
        if any(case in own for case in cases):
            found = (own.get(case) for case in cases)
            ours = ("-" if one is None or math.isnan(one.mean) else f"{one.mean:.5g}" for one in found)
            rows.append([f"{name}, ours", *ours])
    return markdown([f"{_quantity(quantity)}, {_unit(quantity)}; robots", *map(str, item.robots)], rows) + "\n"


def _unit(quantity: str) -> str:
    return UNITS[quantity.rpartition("_")[2]]


def _quantity(quantity: str) -> str:
    words = quantity.split("_")
    return " ".join(words[:-1]) if words[-1] in UNITS and len(words) > 1 else quantity


def _shown(ours: Found | None, published: float | None, unit: str) -> str:
    if ours is None or math.isnan(ours.mean):
        return "-"
    size = max(abs(ours.mean), abs(published or 0.0))
    digits = 0 if ours.mean == int(ours.mean) and size >= 10 else 1 if size >= 10 else 2
    deviation = f" ± {ours.deviation:.{digits}f}" if ours.deviation >= 0.5 * 10**-digits else ""
    return f"{ours.mean:.{digits}f}{deviation} {unit}".strip()


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """A table; the first column is text, the others are figures."""
    lines = [f"| {' | '.join(titles)} |", "| --- |" + " ---: |" * (len(titles) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
