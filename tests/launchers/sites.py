"""MPI launchers with matching libraries, for the tests of MPI as transport."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launchers import programs
from tests.launchers.programs import ROOT, Done

CARRIED = str(ROOT / "tests/launchers/carried.py")
_MPICH = "Intel(R) MPI " if "intel" in programs.MPICH else "MPICH "
# Each rank is a separate node, so every pair of ranks communicates over links or MPI.
APART = {"HOROVOD_TRANSPORT": "tcp"}


@dataclass
class Site:
    """A launcher and a matching library."""

    launcher: Path
    folder: str
    library: str
    says: str
    tmp: Path

    @property
    def open_mpi(self) -> bool:
        return self.folder == programs.OPEN_MPI

    def not_open_mpi_4(self, why: str) -> None:
        if self.open_mpi and not (self.launcher.parent / "prterun").exists():
            pytest.skip(f"Open MPI 4 {why}")

    def command(self, size: int, *more: str) -> list[str]:
        root = ["--allow-run-as-root", "--oversubscribe"] if self.open_mpi else []
        return [str(self.launcher), *root, "-np", str(size), *more]

    def environment(self, operations: str = "mpi", **variables: str) -> dict[str, str]:
        packages = next((ROOT / self.folder).glob("lib/python3.*/site-packages"))
        environ = {
            "HOROVOD_CPU_OPERATIONS": operations,
            "HOROVOD_MPI_LIBRARY": str(ROOT / self.folder / "lib" / self.library),
            "HOROVOD_LOG_LEVEL": "info",
            "PYTHONPATH": f"{ROOT}:{packages}",
            # The library that mpi4py loads.
            "MPI4PY_LIBMPI": str(ROOT / self.folder / "lib" / self.library),
            "TMPDIR": str(self.tmp),
            **variables,
        }
        return programs.environment(**{name: value for name, value in environ.items() if value})

    def run(
        self, size: int, *parts: str, before: tuple[str, ...] = (), operations: str = "mpi", **variables: str
    ) -> Done:
        command = [*self.command(size, *before), sys.executable, CARRIED, str(self.tmp / "told"), ",".join(parts)]
        done = programs.run(command, self.environment(operations, **variables))
        errors = [path.read_text() for path in sorted(self.tmp.glob("told.*.error"))]
        return dataclasses.replace(done, text="\n".join([done.text, *errors]))

    def reports(self, size: int, *parts: str, ranks: range | None = None, **variables: str) -> list[dict]:
        """Return each rank's digests, by rank."""
        done = self.run(size, *parts, **variables)
        assert done.code == 0, done.text
        if variables.get("operations") != "gloo":
            assert f"MPI carries the job: {self.says}" in done.text, done.text
        paths = [self.tmp / f"told.{rank}" for rank in ranks or range(size)]
        reports = [json.loads(path.read_text()) for path in paths]
        for path in paths:
            path.unlink()
        return reports


def site_of(request, name: str, tmp_path: Path) -> Site:
    launcher = request.getfixturevalue("mpirun_path" if name == "Open MPI" else "mpiexec_path")
    folder, library, says = {
        "Open MPI": (programs.OPEN_MPI, "libmpi.so.40", "Open MPI "),
        "MPICH": (programs.MPICH, "libmpi.so.12", _MPICH),
        "standard ABI": (programs.MPICH, "libmpi_abi.so.1", _MPICH),
    }[name]
    if not (ROOT / folder / "lib" / library).exists():
        pytest.skip(f"{folder} has no {library} (scripts/install-launchers.sh)")
    return Site(launcher, folder, library, says, tmp_path)


def keep_running_flags(site: Site) -> tuple[str, ...]:
    """Return the flags with which the launcher leaves other processes alone when one dies."""
    site.not_open_mpi_4("ends the others whatever it is told")
    return ("--runtime-options", "continuous") if site.open_mpi else ("-disable-auto-cleanup",)
