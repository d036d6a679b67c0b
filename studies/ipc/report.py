"""Tables, the picture and the claims."""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
import time
from dataclasses import dataclass
from multiprocessing import shared_memory
from typing import Any

import numpy as np
from lib.simulator import MADE, REPOSITORY
from lib.table import number, show

from ipc import published, serialisation
from ipc.found import Effort, Found, quantile
from ipc.group import Clock
from ipc.node import READ, VIEW, transport
from ipc.place import BROADCAST, GATHER, HOP
from ipc.processes import Memory
from ipc.published import MB

PICTURE = MADE / "ipc" / "latency.png"
PLAIN = "iceoryx"
PLAIN_FACTOR, GROWTH_FACTOR, HOP_US = 1.2, 1.5, 10.0
"""Bounds: ours against plain iceoryx2; the view of the largest loaned buffer against 1 MB; a hop's median."""
WRITES = 20
PATTERNS = (BROADCAST, GATHER)
READ_PRIVATE, VIEW_LOANED = Clock(loaned=False, mode=READ), Clock(loaned=True, mode=VIEW)


def show_all(found: Found, modules: list[str], effort: Effort, *, markdown: bool) -> None:
    """Prints everything and draws the picture."""
    for pattern in PATTERNS:
        for loaned in (False, True):
            show_latencies(found, modules, effort, pattern, loaned=loaned, markdown=markdown)
    show_memory(found, modules, effort, markdown=markdown)
    show_hops(found, modules, markdown=markdown)
    show_writing(found, modules, effort, markdown=markdown)
    show_serialisation(effort, markdown=markdown)
    for claim in claims(found, modules, effort):
        print(f"{claim.verdict}: {claim.what} ({claim.found})")
    for module, why in found.failures.items():
        print(f"FAILED: {transport(module).name}: {why.strip().splitlines()[-1]}")
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found, modules, effort)
        print(f"latency over size: {PICTURE.relative_to(REPOSITORY)}")


def label(size: int) -> str:
    """Returns a size in a title."""
    return f"{size // MB} MB"


def figure(value: float) -> str:
    """Returns a figure with three significant digits."""
    return number(value, 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0)


def quantiles(values: list[float]) -> str:
    """Returns median and p99."""
    return f"{figure(quantile(values, 0.5))} / {figure(quantile(values, 0.99))}" if values else "-"


def show_latencies(
    found: Found, modules: list[str], effort: Effort, pattern: str, *, loaned: bool, markdown: bool
) -> None:
    """Prints the table of a pattern and a kind of beginning."""
    read, view = Clock(loaned=loaned, mode=READ), Clock(loaned=loaned, mode=VIEW)
    rows = []
    for module in modules:
        blocks = [(found.block(module, pattern, size, read), size) for size in effort.sizes]
        if not any(block.messages for block, _ in blocks):
            continue
        row = [transport(module).name]
        for block, size in blocks:
            row += [quantiles(block.latencies_ms)]
            row += [quantiles(found.block(module, pattern, size, view).latencies_ms)]
            row += [figure(1e3 * block.cpu_s / block.messages) if block.messages else "-"]
        rows.append(row)
    for name, means in published.MEAN_LATENCY_MS.items() if not loaned else ():
        rows.append([f"{name}, mean", *(cell for size in effort.sizes for cell in (means.get(size, "-"), "-", "-"))])
    print(f"{pattern}, from a {'loaned buffer' if loaned else 'private array'}: p50 / p99 ms, and processor time, ms\n")
    titles = (title for size in effort.sizes for title in (f"{label(size)}, read", "view", "CPU"))
    show(["transport", *titles], rows, markdown=markdown)


def show_memory(found: Found, modules: list[str], effort: Effort, *, markdown: bool) -> None:
    """Prints the memory of all processes of each transport."""
    rows = []
    for module in modules:
        if transport(module).patterns == (HOP,):
            continue
        both = [found.memory.get((module, pattern), Memory(math.nan, math.nan)) for pattern in PATTERNS]
        cells = (number(value, 0) for memory in both for value in (memory.pss_mb, memory.shared_mb))
        rows.append([transport(module).name, *cells])
    print(f"Memory while messages of {label(max(effort.sizes))} are held, MB\n")
    titles = (title for pattern in PATTERNS for title in (f"{pattern}, PSS", "shared"))
    show(["transport", *titles], rows, markdown=markdown)


def show_hops(found: Found, modules: list[str], *, markdown: bool) -> None:
    """Prints the times of short messages between two processes."""
    rows = [[transport(module).name, quantiles(found.hops_us.get(module, []))] for module in modules]
    print("64 bytes between two processes\n")
    show(["transport", "p50 / p99, us"], rows, markdown=markdown)


def show_writing(found: Found, modules: list[str], effort: Effort, *, markdown: bool) -> None:
    """Prints figure 2: arrays into shared memory."""
    rows = [["shared_memory, new for each array", *(figure(write_new_ms(size)) for size in effort.sizes)]]
    for module in modules:
        loads = [found.block(module, BROADCAST, size, VIEW_LOANED).loads_ms for size in effort.sizes]
        if any(loads):
            rows.append([transport(module).name, *(figure(quantile(load, 0.5)) for load in loads)])
    rows += [[name, *(times.get(size, "-") for size in effort.sizes)] for name, times in published.WRITING_MS.items()]
    print("Writing an array into shared memory, median ms\n")
    show(["transport", *map(label, effort.sizes)], rows, markdown=markdown)


def write_new_ms(size: int) -> float:
    """Returns the median time to create a block, copy into it and remove it, which explains the paper's 40 ms."""
    array, took = np.ones(size, np.uint8), []
    for _ in range(WRITES):
        begun = time.monotonic_ns()
        block = shared_memory.SharedMemory(create=True, size=size)
        np.ndarray(size, np.uint8, block.buf)[:] = array
        block.close()
        block.unlink()
        took.append(1e-6 * (time.monotonic_ns() - begun))
    return statistics.median(took)


def show_serialisation(effort: Effort, *, markdown: bool) -> None:
    """Prints figure 3."""
    speeds = serialisation.measure(effort.block_s)
    best = speeds[serialisation.BEST]
    rows = []
    for name, speed in speeds.items():
        ratios = (number(speed.to_us / best.to_us, 2), number(speed.from_us / best.from_us, 2))
        rows.append([name, number(speed.to_us), number(speed.from_us), *ratios])
    for name, ratios in published.SERIALISATION.items():
        rows.append([f"published: {name}", "-", "-", *(number(ratio, 2) for ratio in ratios)])
    print(f"An array of {label(serialisation.BYTES)} to bytes and back, and how many times longer than pickle 5\n")
    show(["codec", "to, us", "from, us", "to, times", "from, times"], rows, markdown=markdown)


@dataclass(frozen=True)
class Claim:
    """A claim about ours."""

    what: str
    holds: bool
    found: str

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return "holds" if self.holds else "DOES NOT HOLD"


def claims(found: Found, modules: list[str], effort: Effort) -> list[Claim]:
    """Returns our claims that can be checked with the installed peers, and whether they hold."""
    said: list[Claim] = []
    peers = [module for module in modules if module != PLAIN and not transport(module).ours]
    for module in modules:
        name = transport(module).name
        if not transport(module).ours or module in found.failures:
            continue
        hop = quantile(found.hops_us.get(module, []), 0.5)
        said.append(Claim(f"{name}: a hop under {HOP_US:.0f} us", hop < HOP_US, f"{hop:.1f} us"))
        if transport(module).patterns == (HOP,):
            continue
        for clock, what in ((READ_PRIVATE, "private array, read"), (VIEW_LOANED, "loaned buffer, view")):
            for rivals, factor, claim in (
                (peers, 1.0, "first among those with a Python API"),
                ([PLAIN], PLAIN_FACTOR, f"within {PLAIN_FACTOR} times of plain iceoryx2"),
            ):
                ratios = [
                    (found.p50(module, pattern, size, clock) / theirs, f"{rival}, {pattern}, {label(size)}")
                    for pattern in PATTERNS
                    for size in effort.sizes
                    for rival in rivals
                    if not math.isnan(theirs := found.p50(rival, pattern, size, clock))
                ]
                if ratios:
                    worst, where = max(ratios)
                    said.append(Claim(f"{name}: {claim}, {what}", worst <= factor, f"{worst:.2f} times {where}"))
        least, most = min(effort.sizes), max(effort.sizes)
        for pattern in PATTERNS if most > least else ():
            growth = found.p50(module, pattern, most, VIEW_LOANED) / found.p50(module, pattern, least, VIEW_LOANED)
            claim = f"{name}: {label(most)} within {GROWTH_FACTOR} times of {label(least)}, {pattern}, loaned, view"
            said.append(Claim(claim, growth <= GROWTH_FACTOR, f"{growth:.2f} times"))
    return said


def draw(found: Found, modules: list[str], effort: Effort) -> None:
    """Draws figure 4: medians over the size, with the published means."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    canvas, panels = plt.subplots(2, 2, figsize=(11, 8), sharex=True, sharey=True, layout="constrained")
    megabytes = [size / MB for size in effort.sizes]
    for row, pattern in zip(panels, PATTERNS, strict=True):
        for panel, clock in zip(row, (READ_PRIVATE, VIEW_LOANED), strict=True):
            for index, module in enumerate(modules):
                medians = [found.p50(module, pattern, size, clock) for size in effort.sizes]
                style = {"linewidth": 2.5} if transport(module).ours else {"linewidth": 1.3}
                # There are only ten colours.
                line = f"C{index}{'o-' if index < 10 else 's--'}"
                if not all(map(math.isnan, medians)):
                    panel.plot(megabytes, medians, line, markersize=4, label=transport(module).name, **style)
            for name, means in published.MEAN_LATENCY_MS.items() if clock == READ_PRIVATE else ():
                points = {size / MB: float(mean) for size, mean in means.items()}
                marker = "x" if "HPRM" in name else "+"
                panel.plot(points.keys(), points.values(), f"k{marker}:", linewidth=0.8, label=name)
            begin = "loaned buffer, view taken" if clock.loaned else "private array, every page read"
            panel.set(title=f"{pattern}, {begin}", xscale="log", yscale="log")
            panel.set_xticks(megabytes, [f"{size:g}" for size in megabytes])
            panel.minorticks_off()
            panel.grid(alpha=0.3)
        row[0].set_ylabel("median latency, ms")
    for panel in panels[1]:
        panel.set_xlabel("MB")
    handles, labels = panels[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right upper")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close(canvas)
