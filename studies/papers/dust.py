"""Dust: tables II to IV and figure 7, from the tables that studies/fleet.py made for docs/results.md.

Figure 4, and what an executor does to many-to-one, are measured by the same study's programs.
"""

from __future__ import annotations

from lib.simulator import REPOSITORY

from papers.inventory import at_robots
from papers.outcome import Claim, Found, Outcome, Table

RESULTS = REPOSITORY / "docs" / "results.md"
SECTION = "## Many robots' states in one place"
CORES = 2
"""Of the machine that docs/results.md was measured on."""
GURUM = "Gurum DDS is a commercial product"
ROS = ("CycloneDDS", "Zenoh", "coorp", "coorp-keys")


def tables() -> dict[int, list[dict[str, str]]]:
    """The rows of each table of the section, by its period in ms."""
    text = RESULTS.read_text().split(f"\n{SECTION}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[int, list[dict[str, str]]] = {}
    period_ms, titles = 0, []
    for line in text.splitlines():
        if line.startswith("States and lists every "):
            period_ms, titles = int(line.split()[4]), []
        elif line.startswith("| ") and period_ms:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not titles:
                titles = cells
            elif not cells[0].startswith("---"):
                found.setdefault(period_ms, []).append(dict(zip(titles, cells, strict=True)))
        elif line:
            # What follows is text and other tables.
            period_ms = 0
    return found


def value(text: str) -> float:
    """A cell's figure; NaN for a dash."""
    return float("nan") if text == "-" else float(text.removesuffix("%").strip())


def case(row: dict[str, str]) -> tuple[int, str, str, bool]:
    """Robots, topics, system, and whether the cores were the limit."""
    robots, topics, system = (part.strip() for part in row["robots, topics, system"].split(","))
    return int(robots), topics, system.removesuffix("*").strip(), system.endswith("*")


def outcomes() -> dict[str, Outcome]:
    """All of Dust."""
    rows = tables()
    command = "python studies/fleet.py --markdown"
    what = "Python over loopback on two cores, from [results](results.md#many-robots-states-in-one-place)"
    what += ", whose rows say where the cores are the limit"

    def new(cannot: dict[str, str]) -> Outcome:
        return Outcome("live", command, what, cannot=cannot)

    others = {"Gurum DDS": GURUM}
    ages = {key: new(others) for key in ("dust.table_ii", "dust.table_iii")}
    processor, missed = new(others), new({})
    for period_ms, key in ((1, "dust.table_ii"), (2, "dust.table_iii")):
        for row in rows[period_ms]:
            robots, topics, system, _ = case(row)
            name = at_robots(f"{topics}, {system}", robots)
            ages[key].figures.setdefault("age_ms", {})[name] = Found(value(row["age, ms"]))
            used = value(row["cores"]) + value(row["robots' cores"])
            use = at_robots(f"{period_ms} ms, {system}", robots)
            if topics == "many-to-one":
                processor.figures.setdefault("processor_percent", {})[use] = Found(100.0 * used / CORES)
        ages[key].claims["growth"] = growth(ages[key])
    most: dict[tuple[str, str], list[float]] = {}
    for row in rows[1]:
        robots, topics, system, _ = case(row)
        if robots <= 90:
            most.setdefault((topics, system), []).append(value(row["missed"]))
    for (topics, system), shares in most.items():
        name = (
            "many-to-one, the most"
            if (topics, system) == ("many-to-one", "CycloneDDS")
            else f"{topics}, {system}, the most"
        )
        missed.figures.setdefault("missed_percent", {})[name] = Found(max(shares))
    alone = most["one-to-one", "CycloneDDS"]
    text = f"CycloneDDS from {min(alone):.1f} % to {max(alone):.1f} % with 10 to 90 robots"
    missed.claims["one_to_one"] = Claim(max(alone) - min(alone) < 5.0, text)
    return {
        **ages,
        "dust.table_iv": processor,
        "dust.figure_6": new({"peak": GURUM}),
        "dust.figure_7": missed,
    }


def growth(found: Outcome) -> Claim:
    """What the text says of tables II and III, on CycloneDDS."""
    ages = found.figures["age_ms"]

    def most(topics: str) -> float:
        return max(ages[at_robots(f"{topics}, CycloneDDS", robots)].mean for robots in (10, 30, 50, 70, 90))

    def least(topics: str) -> float:
        return ages[at_robots(f"{topics}, CycloneDDS", 10)].mean

    many, one = most("many-to-one"), most("one-to-one")
    text = f"CycloneDDS at most {many:.1f} ms many-to-one, {one:.1f} ms one-to-one"
    return Claim(many > 5.0 * least("many-to-one") and many > 2.0 * one, text)


PARTS = ("received_ms", "listed_ms", "used_ms")
SPANS = ("T1 to T2", "T2 to T3", "T3 to T4")


def parts(robots: list[int], lists: int) -> dict[str, Outcome]:
    """Figures 4 and 5 with what can be had here."""
    import fleet

    what = f"Python over loopback, two cores, states every 1 ms, {lists} lists"
    four, five = (
        Outcome("live", f"python studies/papers/run.py --measure --only dust.figure_{figure}", what)
        for figure in (4, 5)
    )
    rows: list[list[str]] = []
    own: dict[tuple[str, bool], list[float]] = {}
    ages: dict[str, list[float]] = {}
    for system in ("CycloneDDS", "Fast DDS", "Zenoh", "coorp"):
        if (lack := fleet.missing(system)) is not None:
            print(f"{system} is left out: {lack}")
            continue
        for many_to_one in (True, False):
            for count in robots:
                found = fleet.measured(system, count, 1, many_to_one, lists, parts=True)
                topics = "many-to-one" if many_to_one else "one-to-one"
                values = [found.get(part, float("nan")) for part in PARTS]
                own[system, many_to_one] = values
                ages.setdefault(system, []).append(found["age_ms"])
                rows.append([f"{count}, {topics}, {system}", *(f"{value:.2f}" for value in values)])
    four.tables.append(Table("Means in ms.", ["robots, topics, system", *SPANS], rows))
    for many_to_one, claim in ((True, "many_to_one"), (False, "one_to_one")):
        received, listed, used = own["CycloneDDS", many_to_one]
        text = f"{received:.2f}, {listed:.2f} and {used:.2f} ms with {robots[-1]} robots"
        four.claims[claim] = Claim(received + used > listed if many_to_one else listed > received + used, text)
    if "Fast DDS" in ages:
        fewer = sum(fast < cyclone for fast, cyclone in zip(ages["Fast DDS"], ages["CycloneDDS"], strict=True))
        cases = len(ages["Fast DDS"])
        text = f"lower than CycloneDDS's in {fewer} of {cases} cases with {robots[0]} to {robots[-1]} robots"
        five.claims["least"] = Claim(fewer == cases, text)
    return {"dust.figure_4": four, "dust.figure_5": five}


def in_turn(robots: list[int], lists: int) -> dict[str, Outcome]:
    """Table V and figure 8 with an executor's way of taking messages, on one computer."""
    import fleet

    command = "python studies/papers/run.py --measure --only dust.table_v"
    what = (
        "one computer in place of four, CycloneDDS from Python, each list takes one message of each subscription as a "
    )
    what += f"busy executor of ROS 2 does; {lists} lists"
    five, eight = (Outcome("live", command, what) for _ in range(2))
    rows: list[list[str]] = []
    mostly: dict[str, list[bool]] = {}
    for topics in ("many-to-one", "one-to-one"):
        for count in robots:
            found = fleet.measured("CycloneDDS-in-turn", count, 1, topics == "many-to-one", lists, parts=True)
            case = at_robots(f"{topics}, CycloneDDS", count)
            five.figures.setdefault("age_ms", {})[case] = Found(found["age_ms"])
            five.figures.setdefault("missed_percent", {})[case] = Found(100.0 * found["missed"])
            received, listed, used = (found.get(part, float("nan")) for part in PARTS)
            mostly.setdefault(topics, []).append(listed > received + used)
            made = 100.0 * min(found["made"], found["listed"])
            rows.append(
                [f"{count}, {topics}", *(f"{value:.2f}" for value in (received, listed, used)), f"{made:.0f} %"]
            )
    for count in robots:
        five.figures["missed_percent"][at_robots("1 - 1/robots", count)] = Found(100.0 * (1.0 - 1.0 / count))
    title = "Means in ms, and how much of the states and lists that were due was made."
    eight.tables.append(Table(title, ["robots, topics", *SPANS, "made"], rows))
    large = {topics: sum(listed[3:]) for topics, listed in mostly.items()}
    text = f"from 70 robots on, mostly between T2 and T3 in {large['many-to-one']} of {len(robots) - 3} cases "
    text += f"many-to-one, in {large['one-to-one']} one-to-one"
    holds = large["many-to-one"] > (len(robots) - 3) / 2 > large["one-to-one"]
    eight.claims["parts"] = Claim(holds, text)
    return {"dust.table_v": five, "dust.figure_8": eight}
