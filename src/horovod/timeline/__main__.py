"""``python -m horovod.timeline merge | summary | view``: see ``--help`` and docs/timeline.md."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence

from horovod.timeline.merge import merge
from horovod.timeline.read import Event, Trace, find, read
from horovod.timeline.summary import TENSORS, render, summarize


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m horovod.timeline",
        description="What to do with timelines (HOROVOD_TIMELINE, --timeline-filename).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    files = "FILE: rank 0's, beside which those of the others are found, or files of single ranks"
    one = commands.add_parser("merge", help="make one trace of all ranks, on one clock")
    one.add_argument("files", nargs="+", metavar="FILE", help=files)
    one.add_argument("-o", "--output", default="-", help="file to write; - (the default) is standard output")
    one.add_argument("--no-flows", action="store_true", help="without arrows from announcements to executions")
    two = commands.add_parser("summary", help="say who waited for whom, and where the time went")
    two.add_argument("files", nargs="+", metavar="FILE", help=files)
    two.add_argument(
        "--tensors",
        type=int,
        default=TENSORS,
        metavar="N",
        help=f"tensors to show, those most waited for first ({TENSORS})",
    )
    two.add_argument("--json", action="store_true", help="everything, as JSON")
    three = commands.add_parser("view", help="show it in a browser, offline")
    three.add_argument("files", nargs="+", metavar="FILE", help=files)
    three.add_argument("--port", type=int, default=0, help="port on loopback (any that is free)")
    three.add_argument("--no-browser", action="store_true", help="only print the address")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Return the exit code: 0, 1 after an error message for invalid files, 2 for invalid arguments."""
    chosen = _parser().parse_args(arguments)
    try:
        traces = [read(path) for path in find(chosen.files)]
        for trace in traces:
            if not trace.clock:
                print(f"warning: {trace.path}: how far its clock is from rank 0's is not known", file=sys.stderr)
        if chosen.command == "merge":
            _write(merge(traces, not chosen.no_flows), chosen.output)
        elif chosen.command == "summary":
            _print_summary(traces, chosen.json, chosen.tensors)
        else:
            _view(traces, chosen.port, not chosen.no_browser)
    except BrokenPipeError:  # for example with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _lines(events: Sequence[Event]) -> str:
    return (
        "[\n" + ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events) + "\n]\n"
    )


def _write(events: Sequence[Event], output: str) -> None:
    if output == "-":
        sys.stdout.write(_lines(events))
        return
    # Write atomically, and never over an input file before that was read.
    folder = os.path.dirname(os.path.abspath(output))
    handle, path = tempfile.mkstemp(dir=folder, prefix=".timeline-")
    try:
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(_lines(events))
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(path, 0o666 & ~mask)
        os.replace(path, output)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _print_summary(traces: Sequence[Trace], as_json: bool, most: int) -> None:
    summary = summarize(traces)
    if as_json:
        json.dump(summary.as_json(), sys.stdout, ensure_ascii=False, indent=1)
        print()
    else:
        sys.stdout.write(render(summary, most))
    sys.stdout.flush()


def _view(traces: Sequence[Trace], port: int, browser: bool) -> None:
    from horovod.timeline.view import serve

    server, address = serve(merge(traces), port)
    with contextlib.closing(server), contextlib.suppress(KeyboardInterrupt):
        print(f"{address}\nCtrl-C ends it.", flush=True)
        if browser:
            webbrowser.open(address)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
