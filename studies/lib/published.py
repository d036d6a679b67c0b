"""What the papers' testbed gave the policies that they publish figures of."""

from __future__ import annotations

from lib.edit import with_keys
from lib.simulator import Team


def on_testbed(team: Team, policy: str) -> Team:
    """The team with what a policy saw there: all published policies ran on the papers' patched driver."""
    if policy == "coorp":
        return team
    return Team(f"{team.name}-hook", with_keys(team.text, "policy", {"completions": '"hook"'}))
