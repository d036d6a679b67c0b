"""Programs that know nothing of Coorp: their control beside their bulk, without and with `coorp up --protect`.

    cargo build --release -p coorp-cli
    sudo python studies/protect.py [--quick] [--markdown]

Over `coorp emu`, on the channel of `examples/navigation.toml`. Every 33 ms, each of four robots sends the leader a
request and gets a reply, by programs that nobody here wrote (lib/peers.py): `ping`, marked EF and not, and datagrams
beside `iperf3` over TCP. Each case runs

- alone: without bulk, and without protection;
- unprotected: beside bulk from all four robots;
- protected: the same with `coorp emu --protect`, which runs Coorp's agent on each robot. The team file has no rules for
  it: what is control and what is bulk, the agent finds out.

'Over 33 ms' counts round trips that took longer or never finished. The goal: control's p99 within 5 ms of that without
bulk, and 90 % of the bulk without protection. A goal that is missed is a finding, and the study succeeds. It fails if a
run does. `--quick` has one short run of each, whose figures mean nothing.

If the `coorp` binary, root, TUN, `ping` or `iperf3` is missing, the study says so and succeeds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lib.emulated import BOUND_MS, PEERS, Peer, Runs, cell, failures, met, show_emulator
from lib.simulator import REPOSITORY, binary
from lib.table import number, percent, show

TEAM = REPOSITORY / "examples" / "navigation.toml"
HOWS = ("ping-ef", "ping", "udp")
QUICK_HOWS = ("ping-ef",)
WAYS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "alone": (False, ()),
    "unprotected": (True, ()),
    "protected": (True, ("--protect",)),
}
"""By name: whether there is bulk, and the options of `coorp emu`."""
SPAN_S, TIMES = 30.0, 2
QUICK_SPAN_S = 3.0
MORE_MS, BULK_SHARE = 5.0, 0.9


def main() -> int:
    """Runs all cases and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--only", choices=HOWS, help="one kind of control")
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return 0
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        print("skipped: coorp emu needs root and /dev/net/tun")
        return 0
    hows = (arguments.only,) if arguments.only else QUICK_HOWS if arguments.quick else HOWS
    peers = [peer for peer in PEERS if peer.how in hows]
    for peer in peers:
        if (absent := peer.missing()) is not None:
            print(f"skipped: {absent} is missing")
            return 0
    cases = {(peer, way): Runs() for peer in peers for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder) / TEAM.name
        team.write_text(TEAM.read_text())
        subprocess.run([str(program), "keys", "init", str(team)], capture_output=True, check=True)
        for _ in range(1 if arguments.quick else TIMES):
            for (peer, way), runs in cases.items():
                bulk, options = WAYS[way]
                span_s = QUICK_SPAN_S if arguments.quick else SPAN_S
                met(peer, program, team, span_s, runs, bulk=bulk, options=options)
    report(cases, markdown=arguments.markdown)
    return 1 if failures((name(*case), runs) for case, runs in cases.items()) else 0


def name(peer: Peer, way: str) -> str:
    return f"{peer.control}, {way}"


def report(cases: dict[tuple[Peer, str], Runs], *, markdown: bool) -> None:
    """The tables, and the goals."""
    rows = []
    for (peer, way), runs in cases.items():
        figures = (("p50", 1), ("p99", 1), ("over", 1), ("lost", 1), ("mbps", 1))
        rows.append([peer.control, way, *(cell(runs, figure, digits) for figure, digits in figures)])
    show(
        ["control", "", "round trip p50 ms", "p99", f"over {BOUND_MS:.0f} ms, %", "lost, %", "bulk Mbit/s"],
        rows,
        markdown=markdown,
    )
    for peer in dict.fromkeys(peer for peer, _ in cases):
        alone, without, ours = (cases[peer, way] for way in WAYS)
        more = ours.spread("p99").mean - alone.spread("p99").mean
        share = ours.spread("mbps").mean / without.spread("mbps").mean
        holds = "holds" if more <= MORE_MS and share >= BULK_SHARE else "DOES NOT HOLD"
        claim = (
            f"{peer.control}: the goal {holds}: p99 {number(more, sign=True)} ms from that without bulk (at most "
            f"{MORE_MS:+g}), bulk {percent(share, 0)} of that without protection (at least {percent(BULK_SHARE, 0)})"
        )
        print(f"- {claim}" if markdown else claim)
    print()
    show_emulator("case", [(name(*case), runs) for case, runs in cases.items()], markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
