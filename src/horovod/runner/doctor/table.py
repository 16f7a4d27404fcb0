"""Text output of a diagnosis: a table of hosts, a table of connections, and the findings with advice. Pure."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence

from horovod._version import __version__
from horovod.runner.base import frameworks
from horovod.runner.doctor import container_findings, device_table, mpi
from horovod.runner.doctor.report import FAIL, OK, WARN, Diagnosis, Finding, HostAnswer, HostReport

NOTHING = "-"
MOST_PAIRS = 64
OF_SOME = ("container", "driver", "InfiniBand", "MPI")
"""Rows that are left out if no host has a value."""


def show(diagnosis: Diagnosis, width: int) -> str:
    """Return the whole text. `width` is that of the terminal; hosts are columns if they fit, otherwise sections."""
    answers = diagnosis.answers
    parts = [f"horovod {__version__}, {len(answers)} host{'s' if len(answers) != 1 else ''}", ""]
    parts += _hosts(answers, width)
    pairs = list(_pairs(answers))
    if pairs:
        parts += ["", *_columns([("between hosts", "address", "round trip", "one stream"), *pairs[:MOST_PAIRS]])]
        parts += [f"... and {len(pairs) - MOST_PAIRS} more pairs"] if len(pairs) > MOST_PAIRS else []
    for rows in (device_table.listed(answers), device_table.between(answers)):
        parts += ["", *_columns(rows)] if rows else []
    parts += ["", *_findings(diagnosis.findings)]
    return "\n".join(line.rstrip() for line in parts) + "\n"


def _hosts(answers: Sequence[HostAnswer], width: int) -> list[str]:
    known = [(answer, answer.report) for answer in answers if answer.report is not None]
    rows = [(title, *(value(answer, report) for answer, report in known)) for title, value in ROWS]
    rows = [row for row in rows if row[0] not in OF_SOME or set(row[1:]) != {NOTHING}]
    lines = _columns([("", *(answer.host for answer, _ in known)), *rows]) if known else []
    if len(known) > 1 and max(map(len, lines)) > width:
        lines = _sections([answer.host for answer, _ in known], rows)
    unknown = [answer.host for answer in answers if answer.report is None]
    return [*lines, *(["", f"not examined: {', '.join(unknown)}"] if unknown else [])]


def _sections(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return lines with the values that all hosts share, then those of each host."""
    common = [(title, values[0]) for title, *values in rows if len(set(values)) == 1]
    lines = ["on all hosts", *(f"  {line}" for line in _columns(common))] if common else []
    for index, name in enumerate(names):
        own = [(title, values[index]) for title, *values in rows if len(set(values)) > 1]
        lines += [name, *(f"  {line}" for line in _columns(own))] if own else []
    return lines


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _pairs(answers: Sequence[HostAnswer]) -> Iterator[tuple[str, str, str, str]]:
    names = {answer.rank: answer.host for answer in answers}
    for answer in answers:
        for each in answer.report.measured if answer.report else ():
            name = f"{answer.host} -> {names.get(each.peer, '?')}"
            where = f"{each.address} ({each.interface})"
            if each.error:
                yield name, where, NOTHING, each.error
            else:
                yield name, where, f"{each.round_trip_us:.0f} us", f"{each.gigabits:.2f} Gbit/s"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield lines about problems, the worst last, since a terminal shows the end; then the counts."""
    for level in (WARN, FAIL):
        for finding in findings:
            if finding.level == level:
                who = f" {finding.host}:" if finding.host else ""
                yield f"{level:<4} {finding.check}:{who} {finding.text}"
                if finding.advice:
                    yield from (f"     -> {line}" for line in finding.advice.splitlines() if line)
    count = {level: sum(finding.level == level for finding in findings) for level in (OK, WARN, FAIL)}
    yield f"{count[OK]} checks OK, {count[WARN]} warnings, {count[FAIL]} failures"


def _connection(answer: HostAnswer, report: HostReport) -> str:
    return f"ssh, {answer.connect_seconds:.1f} s" if answer.remote else "this machine"


def _engine(answer: HostAnswer, report: HostReport) -> str:
    return "cannot be loaded" if report.engine_error else f"loads; {', '.join(report.ciphers) or 'no encryption'}"


def _frameworks(answer: HostAnswer, report: HostReport) -> str:
    return ", ".join(frameworks.described(report.frameworks)) or "none"


def _cores(answer: HostAnswer, report: HostReport) -> str:
    quota = "" if report.quota is None else f", quota {report.quota:g}"
    return f"{report.cores} of {report.all_cores}{quota}, load {report.load:.1f}"


def _memory(answer: HostAnswer, report: HostReport) -> str:
    return f"{_size(report.memory_available)} of {_size(report.memory)} available"


def _limits(answer: HostAnswer, report: HostReport) -> str:
    return ", ".join(f"{name} {_limit(soft)}" for name, (soft, _) in report.limits.items())


def _limit(value: int) -> str:
    return "unlimited" if value in (-1, resource.RLIM_INFINITY) else str(value)


def _size(value: int) -> str:
    if value < 0:
        return NOTHING
    return f"{value / (1 << 30):.1f} GiB" if value >= 1 << 30 else f"{value >> 20} MiB"


def _clock(answer: HostAnswer, report: HostReport) -> str:
    return f"{answer.clock_offset:+.2f} s" if answer.remote else "this one"


def _network(answer: HostAnswer, report: HostReport) -> str:
    shown = []
    for each in report.interfaces:
        if each.up and not each.loopback and each.addresses:
            speed = f" {each.speed / 1000:g} Gbit/s" if each.speed else ""
            shown.append(f"{each.name} {' '.join(a.text for a in each.addresses)}{speed} MTU {each.mtu}")
    return "; ".join(shown) or "none"


ROWS: tuple[tuple[str, Callable[[HostAnswer, HostReport], str]], ...] = (
    ("connection", _connection),
    ("horovod", lambda _, report: report.version),
    ("Python", lambda _, report: report.python),
    ("engine", _engine),
    ("frameworks", _frameworks),
    ("cores", _cores),
    ("memory", _memory),
    ("container", lambda _, report: container_findings.shown(report)),
    ("/dev/shm free", lambda _, report: _size(report.shm_free)),
    ("limits", _limits),
    ("clock", _clock),
    ("network", _network),
    ("GPU", lambda _, report: device_table.count(report.devices)),
    ("driver", lambda _, report: device_table.driver(report.devices)),
    ("NCCL", lambda _, report: device_table.nccl(report.devices)),
    ("InfiniBand", lambda _, report: device_table.direct(report.devices)),
    ("MPI", lambda _, report: mpi.shown(report.mpi)),
    ("kernel", lambda _, report: report.kernel),
)
