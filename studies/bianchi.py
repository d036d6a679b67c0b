"""Compares Coorp's air with Bianchi's saturation throughput, for 1 to 20 stations without aggregation.

    cargo build --release
    python studies/bianchi.py [--quick] [--markdown]

G. Bianchi, 'Performance analysis of the IEEE 802.11 distributed coordination function', IEEE JSAC 18(3), 2000: the
fixed point of equations 7 and 9, throughput by equation 13, times by equations 14 (basic access) and 17 (RTS/CTS). The
model is used unchanged, with two values set as in 802.11: an EIFS follows a collision, not a DIFS, and interframe
spaces are AIFS. The model repeats a frame forever, with the contention window at its maximum. With 20 stations 0.3 % of
frames would exceed Coorp's eight attempts, so no finite retry limit is added.

If the `coorp` binary is missing, the study says so and succeeds. It exits with 1 if a figure is off by more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.03
REPOSITORY = Path(__file__).resolve().parents[1]

SLOT_US = 9.0
SIFS_US = 16.0
AIFSN = 2
CW_MIN = 15
CW_MAX = 1023
PAYLOAD_BYTES = 1472
# UDP, IP, LLC; QoS MAC header and checksum; the delimiter of a lone VHT MPDU.
OVERHEAD_BYTES = 8 + 20 + 8 + 26 + 4 + 4
CONTROL_RATE_MBPS = 24
# 802.11ac, 20 MHz, one stream, long guard interval: preamble, symbol, data bits per symbol at MCS 4.
MCS = 4
PREAMBLE_US = 40.0
SYMBOL_US = 4.0
BITS_PER_SYMBOL = 52 * 4 * 3 // 4


@dataclass(frozen=True)
class Row:
    """One number of stations with one access method."""

    stations: int
    bianchi_mbps: float
    coorp_mbps: float

    @property
    def error(self) -> float:
        return self.coorp_mbps / self.bianchi_mbps - 1.0

    @property
    def passed(self) -> bool:
        return abs(self.error) <= LIMIT


def legacy_us(size: int, mbps: int) -> float:
    """Returns a control frame's duration (802.11-2020, 17.4.3)."""
    return 20.0 + 4.0 * math.ceil((16 + 8 * size + 6) / (4 * mbps))


def data_us() -> float:
    """Returns a data frame's duration (802.11-2020, 21.4.3)."""
    bits = 16 + 8 * (PAYLOAD_BYTES + OVERHEAD_BYTES) + 6
    return PREAMBLE_US + SYMBOL_US * math.ceil(bits / BITS_PER_SYMBOL)


def attempt_probability(stations: int) -> float:
    """Returns tau, the probability that a station sends in a slot (equations 7 and 9), by bisection."""
    window = CW_MIN + 1
    stages = round(math.log2((CW_MAX + 1) / window))

    def excess(tau: float) -> float:
        p = 1.0 - (1.0 - tau) ** (stations - 1)
        doublings = sum((2.0 * p) ** k for k in range(stages))
        return tau - 2.0 / (1.0 + window + p * window * doublings)

    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (low, middle) if excess(middle) > 0.0 else (middle, high)
    return (low + high) / 2.0


def saturation_mbps(stations: int, *, rts: bool) -> float:
    """Returns the payload throughput (equation 13)."""
    tau = attempt_probability(stations)
    busy = 1.0 - (1.0 - tau) ** stations
    success = stations * tau * (1.0 - tau) ** (stations - 1) / busy
    aifs_us = SIFS_US + AIFSN * SLOT_US
    acknowledgement_us = legacy_us(14, CONTROL_RATE_MBPS)
    eifs_us = SIFS_US + legacy_us(14, 6) + aifs_us
    success_us = data_us() + SIFS_US + acknowledgement_us + aifs_us
    collision_us = data_us() + eifs_us
    if rts:
        rts_us, cts_us = legacy_us(20, CONTROL_RATE_MBPS), legacy_us(14, CONTROL_RATE_MBPS)
        success_us += rts_us + SIFS_US + cts_us + SIFS_US
        collision_us = rts_us + eifs_us
    slot_us = (1.0 - busy) * SLOT_US + busy * success * success_us + busy * (1.0 - success) * collision_us
    return busy * success * 8 * PAYLOAD_BYTES / slot_us


def team_file(stations: int, *, rts: bool) -> str:
    names = [f"station-{i}" for i in range(stations)]
    air = (
        f'[air]\nstandard = "802.11ac"\nwidth_mhz = 20\nstreams = 1\nguard_interval_ns = 800\nmcs = {MCS}\n'
        f"rts_cts = {'true' if rts else 'false'}\ncontrol_rate_mbps = {CONTROL_RATE_MBPS}\n"
        'wnic = "ideal"\n\n'
        f'[air.ac_be]\naifsn = {AIFSN}\ncw_min = {CW_MIN}\ncw_max = {CW_MAX}\ntxop = "0us"\nampdu_frames = 1\n\n'
    )
    robots = [f'[[robot]]\nname = "{name}"\n\n' for name in names]
    flows = [
        f'[[flow]]\nname = "{name}"\nfrom = "{name}"\nto = "sink"\nac = "AC_BE"\ntransport = "udp"\n'
        f"size = {PAYLOAD_BYTES}\nsaturated = true\n\n"
        for name in names
    ]
    return "".join(['[[robot]]\nname = "sink"\nleader = true\n\n', *robots, air, *flows])


def coorp_mbps(binary: Path, stations: int, duration_s: float, *, rts: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        team, out = Path(folder) / "team.toml", Path(folder) / "out.json"
        team.write_text(team_file(stations, rts=rts))
        command = [str(binary), "sim", str(team), "--policy", "edca", "--duration", f"{duration_s:g}s"]
        done = subprocess.run(
            [*command, "--seed", "1", "--json", str(out)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"coorp failed with {stations} stations:\n{done.stderr}")
        return sum(flow["mbps"] for flow in json.loads(out.read_text())["results"][0]["flows"])


def print_rows(basic: list[Row], rts: list[Row], *, markdown: bool) -> None:
    separator, edge = (" | ", "|") if markdown else ("  ", "")

    def line(*fields: str) -> None:
        print(f"{edge} {separator.join(field.rjust(8) for field in fields)} {edge}".rstrip())

    line("stations", "basic", "Coorp", "error", "RTS/CTS", "Coorp", "error", "")
    if markdown:
        line(*["---:"] * 7, "---")
    for pair in zip(basic, rts, strict=True):
        fields = [f for r in pair for f in (f"{r.bianchi_mbps:.2f}", f"{r.coorp_mbps:.2f}", f"{r.error:+.1%}")]
        line(str(pair[0].stations), *fields, "pass" if all(row.passed for row in pair) else "FAIL")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer numbers of stations and shorter runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    binary = Path(os.environ.get("COORP", REPOSITORY / "target" / "release" / "coorp"))
    if not binary.is_file():
        print(f"skipped: {binary} does not exist (cargo build --release, or set COORP)")
        return 0
    numbers = [1, 2, 5, 10, 20] if arguments.quick else list(range(1, 21))
    duration_s = 30.0 if arguments.quick else 120.0

    def run(n: int, rts: bool) -> Row:
        return Row(n, saturation_mbps(n, rts=rts), coorp_mbps(binary, n, duration_s, rts=rts))

    with ThreadPoolExecutor(2) as pool:
        basic, rts = (list(pool.map(run, numbers, [access] * len(numbers))) for access in (False, True))
    print_rows(basic, rts, markdown=arguments.markdown)
    rows = [*basic, *rts]
    failures = sum(not row.passed for row in rows)
    print(f"\n{len(rows) - failures} of {len(rows)} figures within {LIMIT:.0%}.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
