"""Large arrays between the processes of one robot: figures 2, 3 and 4 of Kwok (HPRM), with peers in the same run.

    python studies/ipc/run.py [--quick] [--markdown] [--rounds 3]
    python studies/ipc/run.py --install

Four nodes, each in its own process: one sends to three (broadcast), or three send to one (gather). A message is timed
from the call that sends a private array, or a filled, loaned buffer if a transport has one, until the receiver has read
every page, or until it has a view (node.py). All transports have the same readers and counts, and wait as they do by
default: asleep, except for reactors, which spin for 100 us after a short wait. For hops there is one more transport of
ours, which spins. Rounds of transports are interleaved, so that noise affects all alike. Per transport the tables show

- p50 and p99 of the last receiver (broadcast) or of all messages (gather), in ms;
- the processor time of all processes per message that is read, daemons and checks included, in ms;
- the memory of all processes while the receivers hold the largest message: shared pages counted once (PSS), and the
  machine's shared memory touched by then;
- a hop: 64 bytes between two processes, in us.

Then the study shows the writing of arrays into shared memory (figure 2), serialisation (figure 3), and which claims
hold. The picture that corresponds to figure 4 needs matplotlib. Peers that are not installed are named and skipped;
`--install` installs them, pinned, into environments in the target folder. `--quick` measures one short round of small
messages, for CI; its figures mean little.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ipc import peers, processes, report
from ipc.found import Effort, Found, measure
from ipc.node import transport
from ipc.place import BROADCAST, GATHER, HOP
from ipc.published import MB
from ipc.transports import MODULES

FULL = Effort(rounds=3, counts={MB: 80, 10 * MB: 60, 50 * MB: 40}, block_s=0.8, hops=700)
QUICK = Effort(rounds=1, counts={MB: 8}, block_s=0.1, hops=100)


def measure_all(modules: dict[str, str], effort: Effort) -> Found:
    """Runs all rounds, each with every transport once."""
    found = Found()
    for _ in range(effort.rounds):
        for pattern in (BROADCAST, GATHER, HOP):
            for module, python in modules.items():
                if module not in found.failures and pattern in transport(module).patterns:
                    measure(found, module, pattern, effort, python)
    return found


def main() -> int:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round of small messages, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="number of repetitions [%(default)s]")
    parser.add_argument("--install", action="store_true", help="install the peers, and measure nothing")
    arguments = parser.parse_args()
    if arguments.install:
        peers.install()
        return 0
    # Ends like Ctrl-C, which stops and removes everything that runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes.adopt_orphans()
    effort = QUICK if arguments.quick else dataclasses.replace(FULL, rounds=arguments.rounds)
    modules: dict[str, str] = {}
    for module in MODULES:
        if (python := peers.python(transport(module))) is not None:
            modules[module] = python
        else:
            print(f"skipped: {transport(module).name} is not installed (--install)")
    try:
        found = measure_all(modules, effort)
    except KeyboardInterrupt:
        sys.exit("stopped")
    report.show_all(found, list(modules), effort, markdown=arguments.markdown)
    # A peer's failure is only printed. The study fails if ours, or something that needs no peer, fails.
    return 1 if any(transport(module).interpreter == "own" for module in found.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
