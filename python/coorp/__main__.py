"""The command `coorp`: `learn`, `run` and `sim --sweep` are Python, everything else is the native command line."""

import os
import signal
import sys

from coorp import _native


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["learn"]:
        # This reports what is missing if the extra `learn` is not installed.
        from coorp.learn.main import main as learn

        return learn(arguments[1:])
    if arguments[:1] == ["sim"] and "--sweep" in arguments:
        from coorp.sweep.simulations import main as sweep

        return sweep(arguments[1:])
    if arguments[:1] == ["run"]:
        from coorp.reactor.main import main as run

        return run(arguments[1:])
    # `coorp watch --rerun` runs Python, and what is installed beside this package is installed here.
    os.environ.setdefault("COORP_PYTHON", sys.executable)
    # The native code does not return to Python to check for Ctrl-C, so let the system end the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
