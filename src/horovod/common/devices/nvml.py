"""Information about this host's GPUs from NVIDIA's management library (NVML).

NVML does not initialize CUDA and ignores CUDA_VISIBLE_DEVICES. The constants, the struct layouts and the names of
versioned functions are taken from nvml.h. Newer versions of the library still support them. In some containers and in
WSL, the library is missing or incomplete, so any value can be unknown.
"""

import ctypes
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

LIBRARY: Final = "libnvidia-ml.so.1"

MODES: Final = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
ANCESTORS: Final = {
    0: "same board",
    10: "one switch",
    20: "several switches",
    30: "host bridge",
    40: "one NUMA node",
    50: "between NUMA nodes",
}
"""Distances between two GPUs, from near to far, by NVML's code."""

_P2P: Final = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the I/O hub does not support it",
    4: "it is disabled in the driver",
    5: "not supported",
    6: "unknown",
}
_READ, _NVLINK = 0, 2  # NVML's capability indices for a pair of GPUs
_ADVICE: Final = {
    4: "this user may not ask it (permissions of /dev/nvidia*)",
    9: "the kernel module of NVIDIA's driver is not loaded, or /dev/nvidia* is not in this container",
    15: "a GPU has fallen off the bus; the system's log (Xid) says more",
    18: "driver and library differ in version: the driver was updated, and its old kernel module still runs; restart",
}
MAX_CPUS: Final = 8192
MAX_PROCESSES: Final = 1024

# Size limits for reports, which can come from other hosts.
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Numbers = Annotated[list[int], msgspec.Meta(max_length=MAX_CPUS)]
_MANY: Final = msgspec.Meta(max_length=1024)


class Gpu(msgspec.Struct, frozen=True):
    """Properties of one physical GPU. Unknown values are empty strings, 0 or -1."""

    index: int
    """Index in the order of PCI addresses, which can differ from CUDA's index."""
    name: Text = ""
    uuid: Text = ""
    """UUID, such as GPU-8a2f..., which is the same in all processes, hosts and containers."""
    bus: Text = ""
    """PCI address in the form of /sys: 0000:3b:00.0."""
    capability: tuple[int, int] = (0, 0)
    memory: int = 0
    """Size of the memory in bytes."""
    mode: Text = ""
    """Compute mode, which is a value of MODES."""
    mig: bool = False
    slices: Annotated[list[Text], _MANY] = []
    """UUIDs of the GPU's MIG devices."""
    cpus: Numbers = []
    """CPUs near the GPU."""
    processes: Numbers = []
    """Ids of processes that compute on the GPU. They are the host's ids, which can differ in a container."""


class Pair(msgspec.Struct, frozen=True):
    """Connection between two GPUs of the same host."""

    first: int
    second: int
    distance: Text = ""
    """Distance of the GPUs, which is a value of ANCESTORS."""
    nvlink: bool = False
    refused: Text = ""
    """Reason why the GPUs cannot access each other's memory, or "" if they can."""


class Survey(msgspec.Struct, frozen=True):
    """Information about all GPUs of a host and their connections."""

    gpus: Annotated[list[Gpu], _MANY] = []
    pairs: Annotated[list[Pair], msgspec.Meta(max_length=65536)] = []
    driver: Text = ""
    """Version of the driver, such as 580.82.07."""
    cuda: Text = ""
    """Newest CUDA version that the driver supports, such as 13.0."""
    reason: Text = ""
    """Reason why there are no GPUs, or why their number is unknown."""


class _PciInfo(ctypes.Structure):
    _fields_ = [
        ("old_bus_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class NvmlError(Exception):
    """Raised if NVML is missing or has rejected a call. ``survey`` does not raise it."""


class Nvml:
    """Initialized NVML library, used as a context manager. Methods raise NvmlError on failure."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            missing = "there is no NVIDIA driver on this host, or it is not in this container"
            reason = missing if "No such file" in str(error) else f"cannot be loaded: {error}"
            raise NvmlError(f"{library}: {reason}") from None
        self._call("nvmlInit_v2")

    def __enter__(self) -> "Nvml":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlError:
            pass

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(f"{name}: this version of the library does not have it") from None
        function.restype = ctypes.c_int
        code = function(*arguments)
        if code != 0:
            raise NvmlError(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        try:
            function = self._library.nvmlErrorString
            function.restype = ctypes.c_char_p
            description = (function(code) or b"").decode(errors="replace")
        except AttributeError:
            description = ""
        text = f"{description} (error {code})" if description else f"error {code}"
        return f"{text}; {_ADVICE[code]}" if code in _ADVICE else text

    def number(self, name: str, *arguments: Any) -> int:
        """Call an NVML function with an integer output parameter, and return its value."""
        value = ctypes.c_int(0)
        self._call(name, *arguments, ctypes.byref(value))
        return value.value

    def text(self, name: str, *arguments: Any) -> str:
        """Call an NVML function with a string output parameter, and return its value."""
        buffer = ctypes.create_string_buffer(96)
        self._call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace")

    def device(self, index: int) -> ctypes.c_void_p:
        """Return the NVML handle of a GPU."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def gpu(self, index: int) -> Gpu:
        """Return all information about one GPU. Fields that cannot be determined keep their defaults."""
        device = self.device(index)
        mig = bool(_or(0, lambda: self._mig(device)))
        return Gpu(
            index=index,
            name=_or("", lambda: self.text("nvmlDeviceGetName", device)),
            uuid=_or("", lambda: self.text("nvmlDeviceGetUUID", device)),
            bus=_or("", lambda: self._bus(device)),
            capability=_or((0, 0), lambda: self._capability(device)),
            memory=_or(0, lambda: self._memory(device)),
            mode=_or("", lambda: _named(MODES, self.number("nvmlDeviceGetComputeMode", device))),
            mig=mig,
            slices=_or([], lambda: self._slices(device)) if mig else [],
            cpus=_or([], lambda: self._cpus(device)),
            processes=_or([], lambda: self._processes(device)),
        )

    def _bus(self, device: ctypes.c_void_p) -> str:
        info = _PciInfo()
        self._call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(info))
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"

    def _capability(self, device: ctypes.c_void_p) -> tuple[int, int]:
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        self._call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def _memory(self, device: ctypes.c_void_p) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return int(memory.total)

    def _mig(self, device: ctypes.c_void_p) -> int:
        now, pending = ctypes.c_uint(0), ctypes.c_uint(0)
        self._call("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(pending))
        return now.value

    def _slices(self, device: ctypes.c_void_p) -> list[str]:
        found = []
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", device)):
            part = ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, ctypes.c_uint(index), ctypes.byref(part))
                found.append(self.text("nvmlDeviceGetUUID", part))
            except NvmlError:  # the GPU has no MIG device with this index
                continue
        return found

    def _cpus(self, device: ctypes.c_void_p) -> list[int]:
        width = 8 * ctypes.sizeof(ctypes.c_ulong)
        words = (ctypes.c_ulong * (MAX_CPUS // width))()
        self._call("nvmlDeviceGetCpuAffinity", device, ctypes.c_uint(len(words)), words)
        return [at * width + bit for at, word in enumerate(words) for bit in range(width) if word >> bit & 1]

    def _processes(self, device: ctypes.c_void_p) -> list[int]:
        count = ctypes.c_uint(MAX_PROCESSES)
        processes = (_Process * MAX_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), processes)
        return [int(process.pid) for process in processes[: count.value]]

    def pair(self, first: int, second: int) -> Pair:
        """Return how two GPUs are connected, for example over NVLink."""
        ends = self.device(first), self.device(second)
        ancestor = _or(-1, lambda: self.number("nvmlDeviceGetTopologyCommonAncestor", *ends))
        read = _or(6, lambda: self._p2p(ends, _READ))
        return Pair(
            first,
            second,
            distance=_named(ANCESTORS, ancestor) if ancestor >= 0 else "",
            nvlink=_or(-1, lambda: self._p2p(ends, _NVLINK)) == 0,
            refused=_named(_P2P, read) if read else "",
        )

    def _p2p(self, ends: tuple[ctypes.c_void_p, ctypes.c_void_p], what: int) -> int:
        return self.number("nvmlDeviceGetP2PStatus", *ends, ctypes.c_int(what))


def _or(otherwise: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except NvmlError:
        return otherwise


def _named(names: dict[int, str], number: int) -> str:
    return names.get(number, f"number {number}")


def survey(library: str = LIBRARY, *, pairs: bool = False) -> Survey:
    """Return this host's GPUs, and the connections between them if ``pairs`` is True.

    Failures are reported in ``Survey.reason``.
    """
    try:
        with Nvml(library) as nvml:
            count = nvml.number("nvmlDeviceGetCount_v2")
            version = _or(0, lambda: nvml.number("nvmlSystemGetCudaDriverVersion_v2"))
            return Survey(
                gpus=[nvml.gpu(index) for index in range(count)],
                pairs=[nvml.pair(i, j) for i in range(count) for j in range(i + 1, count)] if pairs else [],
                driver=_or("", lambda: nvml.text("nvmlSystemGetDriverVersion")),
                cuda=f"{version // 1000}.{version // 10 % 100}" if version else "",
                reason="" if count else "the driver is there and knows no GPU",
            )
    except NvmlError as error:
        return Survey(reason=str(error))
