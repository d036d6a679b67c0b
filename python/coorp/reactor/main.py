"""`coorp run`: options, error messages and exit codes.

Exit codes: 0 the program ended, 1 it failed, 2 bad input, 130 ended by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from coorp._native import ProgramError, RunError
from coorp.reactor.duration import nanoseconds
from coorp.reactor.launch import ViolationWarning
from coorp.reactor.load import load_file, only_program
from coorp.reactor.program import COORDINATIONS, Program
from coorp.reactor.report import advice, problems, summary
from coorp.reactor.where import told


def main(arguments: Sequence[str]) -> int:
    """Runs `coorp run` with these arguments and returns the exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        options = _parser().parse_args(arguments[:end])
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 2
    file: Path = options.file
    if not file.is_file():
        return _say(f"error: {file}: {'not a file' if file.exists() else 'no such file'}", 2)
    sys.argv[:] = [str(file), *arguments[end + 1 :]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    try:
        program = only_program(load_file(os.path.abspath(file)))
        return _run(program, options)
    except ProgramError as problem:
        return _say(f"error: {problem}", 2)
    except RunError as problem:
        return _say(f"failed: {problem}", 1)
    except KeyboardInterrupt:
        return _say("killed", 130)
    except Exception as problem:
        if isinstance(problem, OSError) and problem.filename and problem.filename in (options.trace, options.diagram):
            return _say(f"error: {problem.filename}: {problem.strerror}", 2)
        # The error is from the user's own code: from the file or from a reaction.
        return _say(told(problem).rstrip("\n"), 1)


def _run(program: Program, options: argparse.Namespace) -> int:
    if options.diagram is not None:
        program.diagram(options.diagram, options.place)
        return 0
    # Reported below, with the others.
    warnings.simplefilter("ignore", ViolationWarning)
    result = program.run(
        coordination=options.coordination,
        place=options.place,
        fast=options.fast,
        timeout=options.timeout,
        offset=options.offset,
        threads=options.threads,
        pickle=options.pickle,
        store_bytes=options.store_bytes,
        store_wait=options.store_wait,
        trace=options.trace,
        digest=options.digest,
        record=options.record,
        replay=options.replay,
        team=options.team,
        robot=options.robot,
    )
    if sys.stderr.isatty():
        print(summary(result), file=sys.stderr)
    for problem in problems(result):
        print(problem, file=sys.stderr)
    if result.digest is not None:
        print(f"digest {result.digest}")
    if options.advise:
        print(advice(program, result))
    return 130 if result.interrupted else 0


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coorp run",
        usage="coorp run FILE [options] [-- argument ...]",
        description="Run a reactor program: the only Program of a Python file.",
        epilog="Ctrl-C runs the reactions to shutdown; a second one kills. Exit codes: 0 the program ended, 1 it "
        "failed, 2 bad input, 130 ended by Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="Python file with one Program; arguments after -- are its sys.argv"
    )
    parser.add_argument("--coordination", choices=COORDINATIONS, default="centralised", help="[centralised]")
    parser.add_argument(
        "--place", metavar="WHERE", help="one (process), processes (one each), or a placement file [what the file says]"
    )
    parser.add_argument("--fast", action="store_true", help="do not wait for the clock")
    parser.add_argument("--timeout", type=_duration, metavar="TIME", help="end at this logical time, such as 10s")
    parser.add_argument(
        "--offset", type=_duration, metavar="TIME", help="decentralised: time after which a missing input is absent"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads for independent reactions [1]")
    parser.add_argument("--pickle", action="store_true", help="allow any value between processes")
    parser.add_argument("--store-bytes", type=int, metavar="N", help="memory for each output's values [1 GiB]")
    parser.add_argument("--store-wait", type=_duration, metavar="TIME", help="how long to wait if it is full [5s]")
    parser.add_argument("--advise", action="store_true", help="propose `after` and offsets from measured times")
    parser.add_argument("--digest", action="store_true", help="print a hash of everything that reactions did")
    parser.add_argument("--record", metavar="FOLDER", help="record everything that reactions do")
    parser.add_argument("--replay", metavar="FOLDER", help="run a recorded run again, in this process")
    parser.add_argument("--team", metavar="FILE", help="on several robots: the team file")
    parser.add_argument("--robot", metavar="NAME", help="this robot [$COORP_ROBOT]")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("--diagram", metavar="FILE", help="write the dataflow as SVG, without running")
    return parser


def _duration(text: str) -> str:
    try:
        nanoseconds(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return text
