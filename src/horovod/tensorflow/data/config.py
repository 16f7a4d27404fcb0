"""TfDataServiceConfig: the address of a data service, stored in a file that training and data workers share."""

import binascii
import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.common.compute import ComputeClient

SIDES = ("compute", "training")


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Configuration of a data service.

    Attributes:
        dispatchers (int): Number of dispatchers.
        workers_per_dispatcher (int): Number of data workers per dispatcher.
        dispatcher_side (str): "compute" if dispatchers run in the processes of the data workers, or "training" if they
            run in the first ranks of the training.
        addresses (Mapping): Addresses of the ComputeService, by network interface.
        key (bytes): Key of the ComputeService.
        timeout (float): Seconds that parts of the service wait for each other. Default: 60.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        for name in ("dispatchers", "workers_per_dispatcher"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, accepted is an integer of at least 1")
        if self.dispatcher_side not in SIDES:
            raise ValueError(f"dispatcher_side is {self.dispatcher_side!r}, accepted is one of {', '.join(SIDES)}")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout!r}, accepted is a number of seconds above 0")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Return a client of the service.

        Raises:
            ConnectionError: The service does not respond.
        """
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dict for JSON.

        It contains the key in hexadecimal, which gives full access to the service.
        """
        return {
            "dispatchers": self.dispatchers,
            "workers_per_dispatcher": self.workers_per_dispatcher,
            "dispatcher_side": self.dispatcher_side,
            "addresses": {name: [list(place) for place in places] for name, places in self.addresses.items()},
            "key": binascii.hexlify(self.key).decode(),
            "timeout": self.timeout,
        }

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """Return the configuration stored in a dict by ``to_dict``.

        Raises:
            ValueError: The dict has another form.
        """
        try:
            addresses = {
                name: [(host, int(port)) for host, port in found] for name, found in config["addresses"].items()
            }
            numbers = config["dispatchers"], config["workers_per_dispatcher"], config["dispatcher_side"]
            key = binascii.unhexlify(config["key"])
            return TfDataServiceConfig(*numbers, addresses, key, config.get("timeout", 60))
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ValueError(f"no configuration of a data service: {type(error).__name__}: {error}") from error

    def write(self, filename: "str | os.PathLike[str]") -> None:
        """Write the file atomically, readable only by its owner."""
        folder = os.path.dirname(os.path.abspath(filename))
        fd, name = tempfile.mkstemp(prefix=".compute-", dir=folder)  # mkstemp creates the file with mode 0600
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(self.to_dict(), file)
            os.replace(name, filename)
        except BaseException:
            os.unlink(name)
            raise

    @staticmethod
    def read(
        filename: "str | os.PathLike[str]", wait_for_file_creation: bool = False, timeout: float = 600.0
    ) -> "TfDataServiceConfig":
        """Read the configuration from a file.

        Args:
            filename (str or PathLike): Path of the file.
            wait_for_file_creation (bool): Wait for the file and for the service that it describes. A killed service may
                have left its file, which a new service will replace. Default: False.
            timeout (float): Maximum seconds to wait. Default: 600.

        Raises:
            TimeoutError: The file or the service did not appear in time.
            ValueError: The file has another form, or users other than its owner may read or write it.
            OSError: The file cannot be read.
        """
        until = time.monotonic() + timeout
        while True:
            lacks = ""
            try:
                config = _read(filename)
                if not wait_for_file_creation:
                    return config
                with config.compute_client():
                    return config
            except FileNotFoundError:
                if not wait_for_file_creation:
                    raise
            except ConnectionError as error:
                lacks = f" of a service that is there: {error}"
            if time.monotonic() >= until:
                raise TimeoutError(f"waited {timeout:g} s for the file {os.fspath(filename)}{lacks}")
            time.sleep(0.2)

    def remove(self, filename: "str | os.PathLike[str]") -> None:
        """Remove the file if it exists and describes this service."""
        with contextlib.suppress(OSError, ValueError):
            if _read(filename).key == self.key:
                os.remove(filename)


def _read(filename: "str | os.PathLike[str]") -> TfDataServiceConfig:
    with open(filename, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & 0o077:
            raise ValueError(
                f"{os.fspath(filename)} has mode {stat.S_IMODE(mode):04o}, accepted is 0600: it holds a key"
            )
        data = file.read()
    try:
        return TfDataServiceConfig.from_dict(json.loads(data))
    except ValueError as error:
        raise ValueError(f"{os.fspath(filename)}: {error}") from error
