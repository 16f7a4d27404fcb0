"""Plan of a release's wheels: their file names and contents."""

import re
from dataclasses import dataclass

from tools.wheels.sysroot import GLIBC

LARGEST = 6 * 1024 * 1024
"""Maximum size of a wheel in bytes."""

LIBRARIES = ("horovod/_jax/_jax.so", "horovod/mxnet/_mxnet.so", "horovod/tensorflow/_tf.so")
"""Native libraries other than horovod._core, which do not depend on the version of Python."""


@dataclass(frozen=True)
class Wanted:
    """Description of one wheel to build."""

    python: str
    """Version of Python with which it is built."""
    tag: str
    """Python and ABI tags in its name."""

    def file_name(self, version: str, arch: str) -> str:
        return f"horovod-{version}-{self.tag}-{platform_tag(arch)}.whl"

    def extension(self, arch: str) -> str:
        """Return the path of horovod._core in the wheel."""
        if self.tag.endswith("-abi3"):
            return "horovod/_core.abi3.so"
        return f"horovod/_core{self.suffix(arch)}"

    def suffix(self, arch: str) -> str:
        """Return the file name suffix of extension modules for this Python and the given CPU architecture."""
        return f".cpython-{self.python.replace('.', '')}-{arch}-linux-gnu.so"


WANTED = (Wanted("3.10", "cp310-cp310"), Wanted("3.11", "cp311-cp311"), Wanted("3.12", "cp312-abi3"))
"""Since Python 3.12, nanobind can use the stable ABI, so there is one wheel for all later versions."""


def platform_tag(arch: str) -> str:
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}"


OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
"""Libraries that every system with glibc has."""


def library_complaints(
    file: str, undefined: list[tuple[str, str | None, bool]], defined: list[str], needed: list[str]
) -> list[str]:
    """Return a message for each defect in a library's symbols and dependencies.

    Symbols of glibc and libgcc_s have a version, and those of Python have none. auditwheel checks only versions, so it
    does not notice a function that glibc 2.28 lacks.

    Args:
        file: Name of the library.
        undefined: Undefined symbols: name, version (such as ``GLIBC_2.14``, or None), and True if it is weak.
        defined: Exported symbols. They must not include symbols of the statically linked C++ library, because a
            framework's symbols could have the same names.
        needed: Names of the libraries that the file needs.
    """
    lost = [
        name for name, version, weak in undefined if not version and not weak and not name.startswith(("Py", "_Py"))
    ]
    bad = [
        f"{file}: glibc {GLIBC[0]}.{GLIBC[1]} has no {name}; tools/wheels/newer_glibc.c may" for name in sorted(lost)
    ]
    bad += [
        f"{file}: shows {name} of its C++ library to others" for name in defined if name.startswith(("_ZNSt", "_ZSt"))
    ]
    return bad + [f"{file}: needs {name}" for name in needed if not OF_THE_SYSTEM.fullmatch(name)]


def contents_complaints(names: list[str], extension: str, size: int) -> list[str]:
    """Return a message for each defect in a wheel's files and size.

    Args:
        names: Names of the files in the wheel.
        extension: Path of horovod._core inside the wheel.
        size: Size of the wheel in bytes.
    """
    native = {name for name in names if name.endswith(".so")}
    expected = {extension, *LIBRARIES}
    bad = [f"{name} is missing" for name in sorted(expected - native)]
    bad += [f"{name} does not belong there" for name in sorted(native - expected)]
    bad += [f"{name} does not belong there" for name in names if not name.startswith(("horovod/", "horovod-"))]
    if size > LARGEST:
        bad.append(f"{size} bytes are more than {LARGEST}")
    return bad
