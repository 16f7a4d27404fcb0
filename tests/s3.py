"""A moto S3 server for tests, and the fsspec options to reach it."""

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def server(folder: Path, bucket: str) -> Iterator[str]:
    """Yield the URL of a server with that bucket; skip the test if its packages are missing. ``folder``: for a log."""
    s3fs = pytest.importorskip("s3fs")
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("moto's server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as file:
        running = subprocess.Popen(command, stdout=file, stderr=file)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api", timeout=5).close()
                break
            except OSError:
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        s3fs.S3FileSystem(**options(url)).mkdir(bucket)
        yield url
    finally:
        running.terminate()
        running.wait(20)


def options(url: str) -> dict[str, Any]:
    """Return the options for fsspec."""
    return {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": url, "region_name": "eu-west-1"}}
