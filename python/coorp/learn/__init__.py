"""Robots that learn while they drive: `coorp learn`."""
