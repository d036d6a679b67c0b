"""The papers' testbed, as the policies with published figures saw it."""

from __future__ import annotations

from lib.edit import with_keys
from lib.simulator import Team


def on_testbed(team: Team, policy: str) -> Team:
    """Returns the team as the policy saw it there: all published policies ran on the papers' patched driver."""
    if policy == "coorp":
        return team
    return Team(f"{team.name}-hook", with_keys(team.text, "policy", {"completions": '"hook"'}))
