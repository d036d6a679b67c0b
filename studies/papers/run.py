"""Every figure and table of Deng 2022, Dust and Lee beside ours, with a verdict: docs/papers.md.

    python studies/papers/run.py [--quick] [--only deng.figure_10,lee] [--measure] [--write docs/papers.md]

Without `--measure` the page is printed, or written, from what was measured before (measured.json). Published values are
in published.toml, reasons in reasons.toml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from papers import inventory, outcome
from papers.page import page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="for CI")
    parser.add_argument("--write", type=Path, help="write the page to this file in place of printing it")
    arguments = parser.parse_args()
    text = page(inventory.papers(), outcome.read())
    if arguments.write:
        arguments.write.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
