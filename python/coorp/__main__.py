"""The command `coorp`: `learn` is Python, everything else is the native command line."""

import signal
import sys

from coorp import _native


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["learn"]:
        return _learn(arguments[1:])
    # The native code does not come back to Python to ask for a Ctrl-C, so let the system end it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(arguments)


def _learn(arguments: list[str]) -> int:
    try:
        from coorp.learn.main import main as learn
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "coorp":
            raise
        print(
            f"error: 'coorp learn' needs the Python package '{missing.name}', which is not installed; "
            "in Coorp's source: pip install '.[learn]'",
            file=sys.stderr,
        )
        return 2
    return learn(arguments)


if __name__ == "__main__":
    sys.exit(main())
