"""Decides which native module a process loads: that of `coorp-live` if it is installed, or this package's own.

This package's own lacks the live half: `coorp.Node`, and the commands for live robots. That of `coorp-live` has
everything. Only one is loaded, so each class exists once. docs/decisions/0034-wheels.md says why.
"""

from __future__ import annotations

import importlib
from collections.abc import MutableSequence
from importlib.util import find_spec

VERSION = "0.1.0"
"""As in Cargo.toml."""

MISSING = "the live half, which is not installed; in Coorp's source: pip install . ./live"


def load(path: MutableSequence[str]) -> None:
    """Loads `coorp._native`; `path` is where Python looks for the modules of `coorp`.

    Raises an ImportError if its version is not that of this package.
    """
    live = find_spec("coorp_live")
    path[:0] = (live and live.submodule_search_locations) or ()
    native = importlib.import_module("coorp._native")
    if native.__version__ != VERSION:
        raise ImportError(
            f"{native.__file__} has version {native.__version__}, but coorp has {VERSION}; in Coorp's source, install "
            "both again: pip install . ./live; or coorp only: pip uninstall coorp-live && pip install ."
        )
