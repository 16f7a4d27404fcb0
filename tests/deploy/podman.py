"""Test containers, run by podman. `make test-containers` provides its configuration and builds the images."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

LIMIT = 180.0  # seconds


def podman(*argv: str, timeout: float = LIMIT, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a podman command. With `check`, raises AssertionError with its output on failure."""
    done = subprocess.run(["podman", *argv], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"podman {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def options(*more: str) -> list[str]:
    """Options of `podman run` for all containers of these tests."""
    # Without systemd podman runs no health checks; the tests run them. The group is removed at the end.
    return ["--no-healthcheck", f"--cgroup-parent={os.environ['HVD_TEST_CGROUP']}", *more]


def run(image: str, *command: str, with_: tuple[str, ...] = (), check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a container that ends with its command."""
    return podman("run", "--rm", "--network", "none", *options(*with_), f"localhost/{image}", *command, check=check)


def inspect(image: str) -> dict[str, Any]:
    (found,) = json.loads(podman("image", "inspect", f"localhost/{image}").stdout)
    return dict(found)
