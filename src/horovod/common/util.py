"""Small helper functions, some of which other software imports."""

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")
_cache = functools.cache
"""Decorator that caches results by argument."""
_cached: dict[str, Any] = {}


def is_mpi_comm(value: object) -> bool:
    """Return True for an mpi4py communicator.

    Only the name of the type is checked, because importing mpi4py starts MPI.
    """
    return any(base.__module__.startswith("mpi4py") and base.__name__ == "Comm" for base in type(value).__mro__)


def is_iterable(x: object) -> bool:
    """Return True if ``x`` is iterable."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def split_list(l: Sequence[_T], n: int) -> list[Sequence[_T]]:  # noqa: E741 - existing programs pass it by this name
    """Split ``l`` into ``n`` consecutive parts whose lengths differ by at most one, longer parts first.

    Parts can be empty.

    Raises:
        ValueError: If ``n`` is below 1.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    quotient, longer = divmod(len(l), n)
    parts = []
    begin = 0
    for i in range(n):
        end = begin + quotient + (i < longer)
        parts.append(l[begin:end])
        begin = end
    return parts


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return True if ``num_rank`` is a power of two: 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


@contextlib.contextmanager
def env(**values: str | None) -> Iterator[None]:
    """Set environment variables within a ``with`` block. The value None removes a variable."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _apply(values)
        yield
    finally:
        _apply(before)


def _apply(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return True if version ``ver`` ("2.13.0+cpu") is at least ``target`` ("a.b.c").

    Pre-release versions are treated as the release itself.

    Raises:
        ValueError: If ``target`` does not consist of exactly three numbers.
    """
    target_parts = target.split(".")
    if len(target_parts) != 3 or not all(part.isdecimal() for part in target_parts):
        raise ValueError(f"target must be 'a.b.c' with three numbers, got {target!r}")
    found = []
    for part in ver.split("+")[0].split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdecimal():
                break
            digits += character
        found.append(int(digits or 0))
    found += [0] * (3 - len(found))
    return found >= [int(part) for part in target_parts]


def get_ext_suffix() -> str:
    """Return the file name suffix of extension modules for this interpreter."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return suffix if isinstance(suffix, str) else importlib.machinery.EXTENSION_SUFFIXES[0]


_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "mxnet": "mxnet", "keras": "keras", "jax": "jax"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return True if ``horovod.<ext_base_name>`` is usable, that is, if its framework is installed.

    The framework is not imported. Extensions need no compilation, so only the framework matters.
    """
    name = ext_base_name
    found = name in _FRAMEWORKS and importlib.util.find_spec(_FRAMEWORKS[name]) is not None
    found = found and importlib.util.find_spec("horovod." + name) is not None
    if verbose:
        print(f"horovod.{name}: {'available' if found else 'not available'}")
    return found


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise an ImportError with installation advice if the frontend named by ``ext_name`` is unusable."""
    name = ext_name.rsplit(".", 1)[-1]
    if not extension_available(name):
        raise ImportError(f"horovod.{name} needs {_FRAMEWORKS.get(name, name)}, which is not installed")


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Do nothing: one build works with every version of a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return True if the framework is installed with GPU support and this process can use a GPU.

    The result comes from NVIDIA's management library and CUDA_VISIBLE_DEVICES. CUDA is not initialized, so the process
    can still fork.
    """
    from horovod.common.devices import libraries, nvml, visible

    found = extension_available(ext_base_name, verbose) and libraries.built_for_gpus(ext_base_name)
    found = found and bool(visible.choices(os.environ, _once("gpus", nvml.survey))[0])
    if verbose:
        print(f"GPUs for horovod.{ext_base_name}: {'available' if found else 'not available'}")
    return found


def mpi_built(verbose: bool = False) -> bool:
    """Return True if mpi4py can be imported."""
    return importlib.util.find_spec("mpi4py") is not None


def gloo_built(verbose: bool = False) -> bool:
    """Return True: Horovod's built-in engine replaces Gloo."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Return the version code of the NCCL library that ranks would use, such as 22205 for 2.22.5, or 0 if none.

    The library is not loaded into this process, because a framework that is imported later would use it instead of its
    own copy.
    """
    from horovod.common.devices import libraries

    return int(_once("nccl", lambda: libraries.of_nccl(libraries.nccl(os.environ))))


def ddl_built(verbose: bool = False) -> bool:
    """Return False: DDL is not supported."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Return False: oneCCL is not supported."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Return True if the CUDA driver (libcuda.so.1, or HOROVOD_CUDA_LIBRARY) can be loaded.

    There is only one build, which searches for the driver at run time. True does not imply that a GPU is present (see
    ``gpu_available``). CUDA is not initialized.
    """
    from horovod.common.devices import libraries

    return bool(_once("cuda", lambda: not libraries.driver_error(os.environ)))


def rocm_built(verbose: bool = False) -> bool:
    """Return False, because ROCm is not supported."""
    return False


def _once(key: str, function: Callable[[], Any]) -> Any:
    if key not in _cached:
        _cached[key] = function()
    return _cached[key]


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Return a function (op, average) -> op that handles the deprecated ``average``. ``reduce_ops`` is ignored."""
    from horovod.common.ops import resolve_op

    def resolve(op: Any, average: Any) -> Any:
        return resolve_op(op, average)

    return resolve
