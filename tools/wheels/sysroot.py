"""Sysroot with an old glibc for the system's GCC: headers, stub libraries and a toolchain file.

Headers and stubs come from Zig (package ziglang), which contains data of all glibc versions. Zig's compiler only
creates the stubs. GCC compiles Horovod, because `bindings/tensorflow/done.cc` needs the std::function of libstdc++, and
Zig uses libc++. libstdc++ is linked statically, so a wheel requires only glibc and libgcc_s from the system.
"""

import hashlib
import importlib.util
import platform
import posixpath
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

GLIBC = (2, 28)
HERE = Path(__file__).resolve().parent
NEWER = "newer_glibc.c"
# Maximum seconds for creating the stubs on a slow machine.
DEADLINE = 600

LIBRARIES = {"libc": "6", "libm": "6", "libpthread": "0", "libdl": "2", "librt": "1"}

NEWER_IN_LIBSTDCXX = (
    # libstdc++ features that require glibc 2.30.
    "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
    "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK",
)
"""Features of newer versions of glibc that libstdc++'s headers use if the compiler was built with them."""

SHADOWS = {
    "bits/c++config.h": "#include_next <bits/c++config.h>\n"
    + "".join(f"#undef {name}\n" for name in NEWER_IN_LIBSTDCXX),
    # libnewer.a provides pthread_cond_clockwait, which glibc 2.28 lacks. Without it, waits on the steady clock would
    # use the system clock, which can jump.
    "pthread.h": """#include_next <pthread.h>
#pragma once
extern "C" int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
""",
    # glibc 2.28 lacks this header, but libstdc++ includes it if it exists. Zig's copy contains only an #error.
    "sys/single_threaded.h": """#pragma once
extern "C" char __libc_single_threaded;  // libnewer.a has it
""",
}
"""Headers that are found before those of libstdc++ and glibc: contents by name."""


@dataclass(frozen=True)
class Arch:
    """CPU architecture, with the name that each tool uses for it."""

    name: str
    """Name in the tags of wheels and in CMake."""
    headers: str
    """Name in Zig's folders of Linux headers."""
    loader: str
    """Soname of the dynamic loader."""

    def tool(self, name: str) -> str:
        """Return the name of a program of GCC or binutils, with the prefix for cross compilation if it is needed."""
        return name if self.name == platform.machine() else f"{self.name}-linux-gnu-{name}"


ARCHES = {
    "x86_64": Arch("x86_64", "x86", "ld-linux-x86-64.so.2"),
    "aarch64": Arch("aarch64", "aarch64", "ld-linux-aarch64.so.1"),
}


class Missing(RuntimeError):
    """Error raised if a tool is missing, with a message that says what to install."""


def include_folders(search_list: str) -> list[str]:
    """Parse the folders with C++ and compiler headers from the output of ``g++ -E -v``."""
    lines = iter(search_list.splitlines())
    for line in lines:
        if line.startswith("#include <...>"):
            break
    found = []
    for line in lines:
        if line.startswith("End of search list"):
            break
        # Resolve the paths, because Debian's cross compilers print paths such as
        # lib/gcc-cross/.../../../../TARGET/include.
        folder = posixpath.normpath(line.strip())
        if "/c++/" in folder or "/lib/gcc" in folder:
            found.append(folder)
    return found


def toolchain(arch: Arch, root: Path, folders: list[str], top: Path) -> str:
    """Return the text of the CMake toolchain file.

    Args:
        arch: CPU architecture.
        root: The sysroot, with ``include`` (searched before the compiler's headers) and ``lib``.
        folders: Folders of headers, in the order in which they are searched.
        top: Prefix to remove from paths in the libraries, so that they do not depend on the build folder.
    """
    includes = ["-nostdinc", *(f"-isystem {folder}" for folder in [str(root / "include"), *folders])]
    compiling = [*includes, f"-D__GLIBC_MINOR__={GLIBC[1]}", f"-ffile-prefix-map={top}=."]
    # Use the system's libgcc_s, so that a process has only one unwinder. A static libgcc would also require glibc 2.35.
    linking = [
        f"-B{root / 'lib'}",
        f"-L{root / 'lib'}",
        f"-Wl,--version-script={root / 'hidden.map'}",
        "-static-libstdc++",
        "-Wl,--exclude-libs,ALL",
        # Strip debug information, because Zig's objects contain paths that would change the build id.
        "-Wl,--build-id=sha1,--strip-debug",
        # Mark the stack as non-executable, because glibc 2.41 rejects libraries that require an executable stack. Zig's
        # objects lack this marker.
        "-Wl,-z,noexecstack",
    ]
    lines = [
        f"set(CMAKE_CXX_COMPILER {arch.tool('g++')})",
        f'set(CMAKE_CXX_FLAGS_INIT "{" ".join(compiling)}")',
        *(f'set(CMAKE_{kind}_LINKER_FLAGS_INIT "{" ".join(linking)}")' for kind in ("EXE", "SHARED", "MODULE")),
    ]
    if arch.name != platform.machine():
        lines = ["set(CMAKE_SYSTEM_NAME Linux)", f"set(CMAKE_SYSTEM_PROCESSOR {arch.name})", *lines]
    return "\n".join(lines) + "\n"


def make(arch: Arch, root: Path, top: Path) -> Path:
    """Create a CPU architecture's sysroot in a folder, unless it is up to date.

    Args:
        arch: CPU architecture.
        root: The folder.
        top: See `toolchain`.

    Returns:
        The toolchain file in the folder.

    Raises:
        Missing: If Zig or a compiler for the architecture is not installed.
    """
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise Missing("ziglang is not installed: pip install -r tools/wheels/requirements.txt")
    if shutil.which(arch.tool("g++")) is None:
        raise Missing(f"there is no {arch.tool('g++')}: apt-get install g++-{arch.name.replace('_', '-')}-linux-gnu")
    zig = Path(package.origin).parent
    headers = [
        zig / "lib/libc/include" / name
        for name in (f"{arch.headers}-linux-gnu", "generic-glibc", f"{arch.headers}-linux-any", "any-linux-any")
    ]
    searched = subprocess.run(
        [arch.tool("g++"), "-E", "-v", "-x", "c++", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    folders = [*include_folders(searched.stderr), *map(str, headers)]
    made_with = f"{version('ziglang')} {searched.stderr} {Path(__file__).read_text()} {(HERE / NEWER).read_text()}"
    stamp, digest = root / "stamp", hashlib.sha256(made_with.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(root, ignore_errors=True)
        (root / "lib").mkdir(parents=True)
        _stubs(arch, zig / "zig", root)
        _shadow(root)
        # Do not export template instantiations of the C++ standard library from Horovod's libraries.
        (root / "hidden.map").write_text("{ local: _Z*; };\n")
        _add_newer(arch, root, folders)
        stamp.write_text(digest)
    file = root / "toolchain.cmake"
    file.write_text(toolchain(arch, root, folders, top))
    return file


def _stubs(arch: Arch, zig: Path, root: Path) -> None:
    """Link a program with Zig, and copy the glibc stubs that Zig generates for it."""
    cache = root / "zig"
    (root / "empty.c").write_text("int main(void) { return 0; }\n")
    target = f"{arch.name}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    command = [
        zig,
        "build-exe",
        root / "empty.c",
        "-lc",
        "-target",
        target,
        "-fno-compiler-rt",
        "-fno-ubsan-rt",
        f"-femit-bin={root / 'empty'}",
    ]
    environment = {
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
        "HOME": str(root),
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(list(map(str, command)), check=True, timeout=DEADLINE, env=environment)

    def built(name: str) -> Path:
        (found,) = cache.glob(f"o/*/{name}")
        return found

    lib = root / "lib"
    for name, number in LIBRARIES.items():
        shutil.copy(built(f"{name}.so.{number}"), lib)
        if name != "libc":
            (lib / f"{name}.so").symlink_to(f"{name}.so.{number}")
    shutil.copy(built("libld.so.2"), lib / arch.loader)
    shutil.copy(built("libc_nonshared.a"), lib)
    shutil.copy(built("crt1.o"), lib)
    shutil.copy(lib / "crt1.o", lib / "Scrt1.o")
    # Empty files suffice, because the original files contain only code for the function _init, which Horovod lacks.
    for name in ("crti.o", "crtn.o"):
        _compile(arch, ["-x", "assembler", "/dev/null"], lib / name)
    found = f"libdl.so.2 libpthread.so.0 {arch.loader}"
    (lib / "libc.so").write_text(f"GROUP ( libc.so.6 libc_nonshared.a libnewer.a AS_NEEDED ( {found} ) )\n")
    shutil.rmtree(cache)


def _shadow(root: Path) -> None:
    for name, text in SHADOWS.items():
        file = root / "include" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _add_newer(arch: Arch, root: Path, folders: list[str]) -> None:
    flags = ["-nostdinc", *(f"-isystem{folder}" for folder in folders if "/c++/" not in folder)]
    _compile(arch, ["-O2", "-fPIC", *flags, f"-D__GLIBC_MINOR__={GLIBC[1]}", str(HERE / NEWER)], root / "newer.o")
    command = [arch.tool("ar"), "rcsD", str(root / "lib/libnewer.a"), str(root / "newer.o")]
    subprocess.run(command, check=True, timeout=DEADLINE)


def _compile(arch: Arch, argv: list[str], out: Path) -> None:
    command = [arch.tool("gcc"), "-c", *argv, "-o", str(out)]
    try:
        subprocess.run(command, check=True, timeout=DEADLINE)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{shlex.join(command)} failed with exit code {error.returncode}") from error
