"""Whether messages are handled in an order that depends on their inputs alone, with peers in the same run."""
