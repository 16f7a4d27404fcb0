"""Which wheels a release has, what they are called, and what is in them. Pure."""

import re
from dataclasses import dataclass

from tools.wheels.sysroot import GLIBC

LARGEST = 6 * 1024 * 1024
"""Bytes that a wheel may have."""

LIBRARIES = ("horovod/_jax/_jax.so", "horovod/mxnet/_mxnet.so", "horovod/tensorflow/_tf.so")
"""The native libraries beside horovod._core, which no Python's version changes."""


@dataclass(frozen=True)
class Wanted:
    """A wheel to be made."""

    python: str
    """The version that it is built with."""
    tag: str
    """For which Pythons it is, as in its name."""

    def file_name(self, version: str, arch: str) -> str:
        return f"horovod-{version}-{self.tag}-{platform_tag(arch)}.whl"

    def extension(self, arch: str) -> str:
        """The file of horovod._core."""
        if self.tag.endswith("-abi3"):
            return "horovod/_core.abi3.so"
        return f"horovod/_core{self.suffix(arch)}"

    def suffix(self, arch: str) -> str:
        """What the names of extension modules end with in this Python on that CPU."""
        return f".cpython-{self.python.replace('.', '')}-{arch}-linux-gnu.so"


WANTED = (Wanted("3.10", "cp310-cp310"), Wanted("3.11", "cp311-cp311"), Wanted("3.12", "cp312-abi3"))
"""From 3.12 on there is a stable ABI that nanobind can keep to: one wheel for all that come."""


def platform_tag(arch: str) -> str:
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}"


OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
"""Libraries that every system with glibc has."""


def library_complaints(
    file: str, undefined: list[tuple[str, str | None, bool]], defined: list[str], needed: list[str]
) -> list[str]:
    """What is wrong with the symbols of a library and the libraries that it needs.

    What glibc and libgcc_s define has a version, and what has none is Python's. auditwheel looks at versions only, and
    does not see a function that glibc 2.28 lacks.

    :param undefined: of each symbol that others are to have its name, its version (``GLIBC_2.14``; None: none), and
        whether it may be missing (weak).
    :param defined: names of symbols that others see; those of the C++ library that is in it must not be among them, or
        the ones of a framework could be taken for them.
    :param needed: names of libraries.
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
    """What is wrong with a wheel's files and its size.

    :param names: of the files in it.
    :param extension: the one of horovod._core.
    :param size: of the wheel, in bytes.
    """
    native = {name for name in names if name.endswith(".so")}
    wanted = {extension, *LIBRARIES}
    bad = [f"{name} is missing" for name in sorted(wanted - native)]
    bad += [f"{name} does not belong there" for name in sorted(native - wanted)]
    bad += [f"{name} does not belong there" for name in names if not name.startswith(("horovod/", "horovod-"))]
    if size > LARGEST:
        bad.append(f"{size} bytes are more than {LARGEST}")
    return bad
