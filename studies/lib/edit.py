"""Derives team files from others by editing their text.

An edit that finds nothing to change ends the study: a changed example must not lead to a table with a wrong title.
"""

from __future__ import annotations

import re
import sys

_KEY = r"(?m)^{key} *=.*$"
_TABLE = r"(?ms)^\[{table}\]$.*?(?=^\[|\Z)"


def replaced(text: str, old: str, new: str) -> str:
    """Returns `text` with its single occurrence of `old` replaced by `new`."""
    if text.count(old) != 1:
        sys.exit(f"the team file should contain this once, but contains it {text.count(old)} times:\n{old}")
    return text.replace(old, new)


def without_table(text: str, table: str) -> str:
    """Returns `text` without `[table]`, which it must contain once."""
    pattern = _TABLE.format(table=re.escape(table))
    if len(re.findall(pattern, text)) != 1:
        sys.exit(f"the team file should have one [{table}]")
    return re.sub(pattern, "", text)


def with_keys(text: str, table: str, values: dict[str, str]) -> str:
    """Returns `text` with these keys of `[table]` set; the table is added if it is missing. Values are TOML."""
    pattern = _TABLE.format(table=re.escape(table))
    found = re.search(pattern, text)
    if found is None:
        lines = [f"[{table}]", *(f"{key} = {value}" for key, value in values.items())]
        return text.rstrip() + "\n\n" + "\n".join(lines) + "\n"
    body = found.group().rstrip()
    for key, value in values.items():
        line = f"{key} = {value}"
        body, count = re.subn(_KEY.format(key=re.escape(key)), lambda _, line=line: line, body)
        if count == 0:
            body += f"\n{line}"
    return text[: found.start()] + body + "\n\n" + text[found.end() :]


def changed_key(text: str, table: str, key: str, value: str) -> str:
    """Returns `text` with an existing key of `[table]` changed."""
    found = re.search(_TABLE.format(table=re.escape(table)), text)
    if found is None or re.search(_KEY.format(key=re.escape(key)), found.group()) is None:
        sys.exit(f"the team file should set {key} in [{table}]")
    return with_keys(text, table, {key: value})


def changed_line(text: str, key: str, value: str) -> str:
    """Returns `text` with an existing key before all tables changed."""
    line = f"{key} = {value}"
    changed, count = re.subn(_KEY.format(key=re.escape(key)), lambda _: line, text)
    if count != 1:
        sys.exit(f"the file should set {key} once, but sets it {count} times")
    return changed
