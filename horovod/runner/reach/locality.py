"""Which hosts are this machine, asked without waiting: a name is looked up, which takes long where nobody answers."""

from __future__ import annotations

import os
import threading

from horovod.runner.plan import hosts
from horovod.runner.reach import ssh


class Locality:
    """`fd` is readable when an answer has come, until the next `answers`."""

    def __init__(self, asks_ssh: bool, looks: bool = True) -> None:
        """`asks_ssh`: other hosts are reached by ssh, whose rules for each are asked for as well. `looks` False: none
        is taken for this machine."""
        self._looks = looks
        self._asks_ssh = asks_ssh
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False
        self._answers: dict[str, bool] = {}

    def ask(self, host: str) -> None:
        """Begins to find out."""
        if not self._looks:
            self._answer(host, False)
            return
        threading.Thread(target=self._find, args=(host,), name="horovod-locality", daemon=True).start()

    def _find(self, host: str) -> None:
        local = hosts.is_local(host)
        if not local and self._asks_ssh:
            ssh.ask_rules([host])  # remembered there
        self._answer(host, local)

    def _answer(self, host: str, local: bool) -> None:
        with self._lock:
            if not self._closed:
                self._answers[host] = local
                os.eventfd_write(self.fd, 1)

    def answers(self) -> dict[str, bool]:
        """By host: is it this machine? Those that have come since the last call."""
        with self._lock:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                return {}
            answers, self._answers = self._answers, {}
        return answers

    def close(self) -> None:
        """Whoever still looks something up is not waited for."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
