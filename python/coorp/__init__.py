"""Control on time and bulk at full speed for robot teams on one WiFi channel."""

from coorp._native import __version__

__all__ = ["__version__"]
