"""Asynchronous check whether hosts are this machine; looking up a name can take long."""

from __future__ import annotations

import os
import threading

from horovod.runner.plan import hosts
from horovod.runner.remote import ssh


class Locality:
    """Lookups in threads. `fd` is readable when an answer is available."""

    def __init__(self, asks_ssh: bool, looks: bool = True) -> None:
        """Create the event descriptor.

        Args:
            asks_ssh: True if other hosts are reached by ssh, whose rules for each host are then looked up as well.
            looks: If False, no host is taken for this machine.
        """
        self._looks = looks
        self._asks_ssh = asks_ssh
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False
        self._answers: dict[str, bool] = {}

    def ask(self, host: str) -> None:
        """Start to look up whether the host is this machine."""
        if not self._looks:
            self._answer(host, False)
            return
        threading.Thread(target=self._find, args=(host,), name="horovod-locality", daemon=True).start()

    def _find(self, host: str) -> None:
        local = hosts.is_local(host)
        if not local and self._asks_ssh:
            ssh.ask_rules([host])  # cached there
        self._answer(host, local)

    def _answer(self, host: str, local: bool) -> None:
        with self._lock:
            if not self._closed:
                self._answers[host] = local
                os.eventfd_write(self.fd, 1)

    def answers(self) -> dict[str, bool]:
        """Return the answers since the last call: for each host, True if it is this machine."""
        with self._lock:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                return {}
            answers, self._answers = self._answers, {}
        return answers

    def close(self) -> None:
        """Close the event descriptor without waiting for running lookups."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
