"""The measurements, and their extent."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

from ipc.group import Block, Clock, Group, GroupError
from ipc.node import READ, VIEW, transport
from ipc.place import HOP, SHORT_BYTES
from ipc.processes import Memory

CLOCKS = [Clock(loaned=loaned, mode=mode) for loaned in (False, True) for mode in (READ, VIEW)]


@dataclass(frozen=True)
class Effort:
    """The extent of the measurements."""

    rounds: int
    counts: dict[int, int]
    """Number of messages from each sender in a block, by size."""
    block_s: float
    """Time limit of a block; a slower transport sends fewer messages."""
    hops: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the messages."""
        return tuple(self.counts)


@dataclass
class Found:
    """All measurements."""

    blocks: dict[tuple[str, str, int, Clock], Block] = field(default_factory=dict)
    """The blocks, by transport, pattern, size and clock."""
    memory: dict[tuple[str, str], Memory] = field(default_factory=dict)
    """The memory, by transport and pattern: the highest of all rounds."""
    hops_us: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """The errors of transports that are measured no further."""

    def block(self, module: str, pattern: str, size: int, clock: Clock) -> Block:
        """Returns a block, empty if it was not measured."""
        return self.blocks.get((module, pattern, size, clock), Block())

    def p50(self, module: str, pattern: str, size: int, clock: Clock) -> float:
        """Returns a median, or NaN."""
        return quantile(self.block(module, pattern, size, clock).latencies_ms, 0.5)


def quantile(values: list[float], share: float) -> float:
    """Returns the value that this share of all values does not exceed, or NaN."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def measure(found: Found, module: str, pattern: str, effort: Effort, python: str) -> None:
    """Measures one round of one transport and pattern."""
    try:
        if pattern == HOP:
            with Group(module, pattern, (SHORT_BYTES,), python) as group:
                found.hops_us.setdefault(module, []).extend(group.hops(effort.hops))
        else:
            with Group(module, pattern, effort.sizes, python) as group:
                measure_blocks(found, group, module, pattern, effort)
    except GroupError as error:
        found.failures[module] = str(error)
        print(f"{transport(module).name}, {pattern}: {error}", file=sys.stderr)


def measure_blocks(found: Found, group: Group, module: str, pattern: str, effort: Effort) -> None:
    """Measures all sizes and clocks, and the memory."""
    for size, count in effort.counts.items():
        for clock in CLOCKS:
            if clock.loaned and not transport(module).loans:
                continue
            block = group.block(size, clock, count=count, limit_s=effort.block_s)
            found.blocks.setdefault((module, pattern, size, clock), Block()).add(block)
    now = group.memory(max(effort.sizes))
    peak = found.memory.get((module, pattern), now)
    found.memory[module, pattern] = Memory(max(now.pss_mb, peak.pss_mb), max(now.shared_mb, peak.shared_mb))
