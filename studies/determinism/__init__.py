"""Tests whether messages are handled in an order that depends only on their inputs, with peers in the same run."""
