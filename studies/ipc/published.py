"""Figures of Kwok (HPRM), as given in its text."""

from __future__ import annotations

MB = 1_000_000
MEAN_LATENCY_MS = {
    "published: ROS 2 Humble": {10 * MB: "1161", 50 * MB: "7723"},
    "published: HPRM": {10 * MB: "15", 50 * MB: "44.6"},
}
"""Figure 4: broadcast and gather on 4 nodes, with the array private to its sender."""
WRITING_MS = {"published: shared_memory": {50 * MB: "> 40"}, "published: Plasma": {50 * MB: "< 10"}}
"""Figure 2."""
SERIALISATION = {"the ROS 2 NumPy package": (14_045.0, 2.96), "in-band pickle": (49.2, 20.2)}
"""Figure 3: throughput of out-of-band pickle over this codec's, to and from bytes, for an array of 5 MB."""
