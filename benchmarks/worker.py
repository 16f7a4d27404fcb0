"""Program of one rank of a library under comparison. It measures when the driver requests it, and sleeps in between.

This file imports only the standard library and ``serving`` (src/horovod/benchmark/standalone, on PYTHONPATH), because
MPI runs in an environment without PyTorch.
"""

from __future__ import annotations

import argparse
import importlib

from cases import Case
from serving import serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--no-pin", action="store_true")
    args = parser.parse_args()
    peer = importlib.import_module(f"peers.{args.peer}").Peer()
    serve(peer, args.socket, Case, not args.no_pin)


if __name__ == "__main__":
    main()
