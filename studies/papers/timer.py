"""A program that wakes up at 30 Hz, as a sensor's does, and says when it did: one time in ms a line.

python studies/papers/timer.py SECONDS
"""

import sys
import time

PERIOD_S = 1.0 / 30.0

woken: list[float] = []
next_s = time.monotonic() + PERIOD_S
until_s = next_s + float(sys.argv[1])
while next_s < until_s:
    time.sleep(max(0.0, next_s - time.monotonic()))
    woken.append(1e3 * time.monotonic())
    next_s += PERIOD_S
print("\n".join(f"{at:.6f}" for at in woken))
