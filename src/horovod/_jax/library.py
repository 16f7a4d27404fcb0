"""Loading and registration of the native library that compiled programs call (bindings/jax)."""

import ctypes
import functools

import jax

from horovod.common.native import library_path

try:
    from jax import ffi
except ImportError:  # jax before 0.5
    from jax.extend import ffi

TARGET = "horovod_collective"
_LIBRARY = "horovod._jax._jax"


def require_cpu() -> None:
    """Check that programs run on the CPU.

    Raises:
        NotImplementedError: They would run on another platform; the message names it.
    """
    device = jax.config.jax_default_device
    platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    if platform != "cpu":
        raise NotImplementedError(
            f"the platform of a program with collectives must be 'cpu', got {platform!r}; set JAX_PLATFORMS=cpu"
        )


@functools.lru_cache(maxsize=1)
def register() -> None:
    """Load the library, pass it the engine's function table and register it with XLA, once per process.

    Raises:
        ImportError: The library cannot be loaded, or has another version.
    """
    from horovod import _core

    try:
        library = ctypes.CDLL(str(library_path(_LIBRARY)))
    except (ImportError, OSError) as error:
        raise ImportError(f"the library for JAX cannot be loaded: {error}") from error
    library.hvd_jax_attach.argtypes = [ctypes.c_size_t]
    if library.hvd_jax_attach(_core.face_api()) != 0:
        raise ImportError(f"{_LIBRARY} and horovod._core must have the same version; reinstall Horovod")
    ffi.register_ffi_target(TARGET, ffi.pycapsule(library.hvd_jax_collective), platform="cpu")
