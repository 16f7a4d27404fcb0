"""Which new workers fit to an elastic job, by what they say of themselves. Pure.

Ranks of another version of horovod would understand each other by chance, and a state of another Python need not be
readable. Another text of the program would train on with other mathematics, unnoticed; where hosts are updated one by
one on purpose, whoever starts the job says so, and it is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from horovod._version import __version__
from horovod.common.contract.membership import Facts, decode_facts
from horovod.common.contract.settings import BY_NAME

_CODE = "HOROVOD_ELASTIC_CODE"


class Verdict(NamedTuple):
    """`refusal`: why the worker is not let in, `warning`: what is to be said of it; empty when nothing is."""

    refusal: str = ""
    warning: str = ""


class Newcomers:
    """`same_code`: is another text of the program a reason to refuse (HOROVOD_ELASTIC_CODE, unless it is any)?
    `version`: of horovod, the launcher's. Python and the program are those of the first worker that comes."""

    def __init__(self, same_code: bool = True, version: str = __version__) -> None:
        self._same_code = same_code
        self._version = version
        self._job: Facts | None = None  # what its first worker has said

    @classmethod
    def wanted(cls, environ: Mapping[str, str]) -> Newcomers:
        """As these variables have it. Raises ValueError naming what is accepted."""
        return cls(BY_NAME[_CODE].parse(environ.get(_CODE, "")) != "any")

    def judge(self, told: bytes) -> Verdict:
        """Of a worker that comes for the first time, which says this (`Facts`)."""
        try:
            facts = decode_facts(told)
        except ValueError:
            return Verdict("what it says of itself cannot be read: it has another version of horovod than the launcher")
        if facts.version != self._version:
            return _differs("horovod", facts.version, "launcher has", self._version)
        if self._job is None:
            self._job = facts
        job = self._job
        if facts.python != job.python:
            return _differs("Python", facts.python, "job's workers have", job.python)
        if facts.code == job.code:
            return Verdict()
        if facts.program == job.program:
            differs = f"its copy of {facts.program} differs from the one that the job runs"
        else:
            differs = f"its program is {facts.program or 'no file'}, but the job's is {job.program or 'no file'}"
        if self._same_code:
            return Verdict(f"{differs}; install the same on all hosts, or let it in by HOROVOD_ELASTIC_CODE=any")
        return Verdict(warning=f"{differs}, which HOROVOD_ELASTIC_CODE=any allows")


def _differs(what: str, its: str, others: str, theirs: str) -> Verdict:
    return Verdict(f"it has {what} {its}, but the {others} {what} {theirs}; install the same on all hosts")
