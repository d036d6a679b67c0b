"""The same three nodes over other middleware: one file each, with `open_bus` for `determinism/node.py`.

`open_bus(role)` returns a `Bus`. Topics are "disarm" and "asked", from the cockpit, and "open", from the relay.
"""
