"""The main function of a process that runs one federate. Started by `launch.py`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

from coorp.reactor.signals import FOR_LAUNCHER, STOP_SIGNAL

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the federate, reports to the launcher, and returns the exit code."""
    federate, common, pipe = map(int, sys.argv[1:4])
    # These signals may reach all processes at once; only the launcher reacts, and requests the end.
    for number in FOR_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_LAUNCHER)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for descriptor in (common, pipe):
        os.set_inheritable(descriptor, False)
    given = json.loads(os.pread(common, os.fstat(common).st_size, 0))
    os.close(common)
    if os.getppid() != given["launcher"]:
        # The launcher died before the kernel knew that this process should die with it.
        return 1
    with os.fdopen(pipe, "w", encoding="utf-8") as reports:
        return _run(federate, given, reports)


def _run(federate: int, given: dict[str, Any], reports: Any) -> int:  # noqa: ANN401
    from coorp._native import PeerError
    from coorp.reactor.federate import Failed, release, runner
    from coorp.reactor.where import told

    def report(**what: object) -> None:
        reports.write(json.dumps(what, default=str) + "\n")
        reports.flush()

    failed = Failed()
    try:
        sys.path[:], sys.argv[:] = given["path"], given["argv"]
        built = _same_program(given)
        settings = given["settings"][federate]
        if "trace_fd" in settings:
            os.set_inheritable(settings["trace_fd"], False)
        made = runner(built, federate, settings, failed)
        built.program.running = made
        signal.signal(STOP_SIGNAL, lambda _number, _frame: made.request_stop())
        report(running=True)
        counters = made.run()
        release(built)
    except BaseException as problem:
        is_cause = not isinstance(problem, PeerError)
        report(failed={"reaction": failed.reaction, "at_ns": failed.at_ns, "text": told(problem), "cause": is_cause})
        return 1
    report(result=counters)
    return 0


def _same_program(given: dict[str, Any]) -> Any:  # noqa: ANN401
    from coorp._native import ProgramError
    from coorp.reactor.build import build
    from coorp.reactor.load import found
    from coorp.reactor.place import Placement

    program = found(given["location"])
    if set(program.added) == set(given["of"]):
        # The launcher has already refused types that cannot be sent.
        built = build(program, Placement(tuple(given["federates"]), given["of"]), pickle=True)
        if built.text == given["program"]:
            return built
    raise ProgramError(
        f"{program.where}: the program differs from process to process; build it without random numbers, the time, or "
        'anything that only `if __name__ == "__main__":` runs'
    )


if __name__ == "__main__":
    sys.exit(main())
