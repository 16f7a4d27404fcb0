"""Runs the tests on each C++ mutant in `by_hand.txt`, which is compiled in a copy of the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tools.mutants.by_hand import Chosen, mutant, mutated
from tools.mutants.python_mutants import Mutant

PARTS = ("CMakeLists.txt", "core", "tests/core", "tests/simulated", "tests/vectors", "benchmarks/engine", "fuzz/core")
# Maximum seconds for a full build on a slow and busy machine.
BUILD_SECONDS = 1800.0
TEST_SECONDS = 120.0


def copy_changed(root: Path, copy: Path) -> None:
    """Update a copy of the source tree.

    Unchanged files keep their modification times, so that they are not compiled again.
    """
    changed = set()
    for part in PARTS:
        files = [root / part] if (root / part).is_file() else [f for f in (root / part).rglob("*") if f.is_file()]
        for file in files:
            target = copy / file.relative_to(root)
            changed.add(target)
            if not target.exists() or target.read_bytes() != file.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    for part in PARTS:
        for file in (copy / part).rglob("*"):
            if file.is_file() and file not in changed:
                file.unlink()


class Build:
    """Builder of test binaries in `folder`, which contains a copy of the source tree."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.tree, self._build, self._jobs = folder / "tree", folder / "build", jobs
        copy_changed(root, self.tree)
        # Use a low optimization level, because compilation takes longer than the tests.
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
        options += ("-DHVD_BUILD_TESTS=ON", "-DHVD_BUILD_PYTHON=OFF", "-DHVD_UNITY=OFF")
        self._run(["cmake", "-S", str(self.tree), "-B", str(self._build), "-G", "Ninja", *options], BUILD_SECONDS)

    @staticmethod
    def _run(command: list[str], seconds: float) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def make(self, *binaries: str) -> None:
        """Build test binaries. Raises RuntimeError with the compiler's messages if that fails."""
        self._run(["cmake", "--build", str(self._build), "-j", str(self._jobs), "--target", *binaries], BUILD_SECONDS)

    def passes(self, native: Chosen) -> str:
        """Run a mutant's tests. Return "passed", "failed" or "hung"."""
        command = [str(self._build / "tests/core" / native.binary), f"-tc={native.tests}"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return "hung"
        if b"test cases:  0" in done.stdout or b"test cases: 0 |" in done.stdout:
            raise RuntimeError(f"{' '.join(command)}: there is no such test")
        return "failed" if done.returncode else "passed"


def try_table(
    root: Path, folder: Path, natives: list[Chosen], jobs: int, report: Callable[[Mutant], None]
) -> list[Mutant]:
    """Test all C++ mutants in the table.

    Raises RuntimeError if a mutant does not compile, or if tests fail on the unmodified code.
    """
    os.nice(5)
    build = Build(root, folder, jobs)
    build.make(*sorted({native.binary for native in natives}))
    for native in dict.fromkeys(Chosen("", n.binary, n.tests, "", "") for n in natives):
        if build.passes(native) != "passed":
            raise RuntimeError(f"{native.binary} -tc='{native.tests}' does not pass without any change")
    mutants = []
    for native in natives:
        file = build.tree / native.file
        source = file.read_text(encoding="utf-8")
        file.write_text(mutated(source, native), encoding="utf-8")
        try:
            build.make(native.binary)
            outcome = build.passes(native)
        finally:
            file.write_text(source, encoding="utf-8")
        mutants.append(mutant(source, native, outcome))
        report(mutants[-1])
    return mutants
