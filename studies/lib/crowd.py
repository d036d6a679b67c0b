"""A made-up team for the page of `coorp watch --web`: in the browser, in place of the WebSocket (crowd.js)."""

from __future__ import annotations

import json
from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js")


def crowd(*, robots: int, rate_hz: float) -> str:
    """The script of a team whose robots make control messages at a rate."""
    options = json.dumps({"robots": robots, "rate_hz": rate_hz})
    return f"globalThis.CROWD = {options};\n{SCRIPT.read_text()}"
