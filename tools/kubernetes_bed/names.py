"""Name server of the cluster, which replaces CoreDNS.

Names of headless services resolve to the addresses of their pods. Like CoreDNS, the server caches negative answers for
5 s, so a client that queries a name too early must wait.
"""

import socket
import threading
import time
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from tools.kubernetes_bed.client import Client, Refused

ZONE = "svc.cluster.local."
NEGATIVE_SECONDS = 5.0
TTL = 5


class Names:
    """Table that maps names to addresses, with a cache of negative answers."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}
        self._vain: dict[str, float] = {}
        self._lock = threading.Lock()

    def learn(self, event: str, obj: dict[str, Any]) -> None:
        """Update the addresses from a watch event of an Endpoints object."""
        metadata = obj["metadata"]
        base = f"{metadata['name']}.{metadata['namespace']}.{ZONE}"
        with self._lock:
            for name in [each for each in self._found if each == base or each.endswith(f".{base}")]:
                del self._found[name]
            if event == "DELETED":
                return
            for subset in obj.get("subsets") or []:
                for each in [*subset.get("addresses", []), *subset.get("notReadyAddresses", [])]:
                    for name in [base, *([f"{each['hostname']}.{base}"] if each.get("hostname") else [])]:
                        self._found.setdefault(name, set()).add(each["ip"])

    def addresses(self, name: str, now: float) -> set[str]:
        """Return the addresses of a name.

        The result is empty if the name has no addresses, or if a negative answer is still cached.
        """
        name = name.lower()
        with self._lock:
            if now < self._vain.get(name, 0.0):
                return set()
            found = set(self._found.get(name, ()))
            if not found:
                self._vain[name] = now + NEGATIVE_SECONDS
            return found

    def answer(self, query: dns.message.Message, now: float) -> dns.message.Message:
        """Return the DNS response to a query with one question."""
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA | dns.flags.RA
        question = query.question[0]
        found = sorted(self.addresses(question.name.to_text(), now))
        if not found:
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            response.answer.append(dns.rrset.from_text_list(question.name, TTL, "IN", "A", found))
        return response


def serve(address: str, port: int = 53) -> None:
    """Start threads that answer queries until the process exits."""
    names = Names()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, port))

    def follow() -> None:
        client = Client()
        while True:
            try:
                for event, obj in client.follow("/api/v1/endpoints"):
                    if event:
                        names.learn(event, obj)
            except (Refused, OSError) as error:
                print(f"names: {error}", flush=True)
                time.sleep(1)

    def reply() -> None:
        while True:
            data, asker = sock.recvfrom(4096)
            try:
                query = dns.message.from_wire(data)
                sock.sendto(names.answer(query, time.monotonic()).to_wire(), asker)
            except Exception as error:  # Ignore an invalid query, because an exception would end the thread.
                print(f"names: {type(error).__name__}: {error}", flush=True)

    for target in (follow, reply):
        threading.Thread(target=target, daemon=True).start()
