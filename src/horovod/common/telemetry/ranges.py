"""Ranges for NVIDIA's profilers, named after the operations that the engine executes (docs/gpu.md)."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from horovod.common.contract.settings import Settings
from horovod.common.devices import libraries
from horovod.common.devices.libraries import Missing

if TYPE_CHECKING:
    from horovod._core import Engine

_PROFILER = "NVTX_INJECTION64_PATH"  # set by the profiler that starts the program; NVTX loads its library from there


def begin(engine: "Engine", settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Mark ranges if a profiler is attached and HOROVOD_DISABLE_NVTX_RANGES is not set. Return an error text or ""."""
    if not environ.get(_PROFILER) or settings.flag("HOROVOD_DISABLE_NVTX_RANGES"):
        return ""
    library = libraries.nvtx(environ)
    if isinstance(library, Missing):
        return f"no ranges for the profiler in {_PROFILER}: {library.reason}"
    try:
        engine.mark_ranges(library.path)
    except OSError as error:
        return f"no ranges for the profiler in {_PROFILER}: {error}"
    return ""
