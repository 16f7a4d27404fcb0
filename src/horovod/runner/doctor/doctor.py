"""Host checks run by `horovodrun --doctor`.

The checks use the same agents, environment and handshakes as a job. First, the doctor starts an agent on each host of
the job to find all unreachable hosts. Then it runs a job on the reachable hosts, with `probe` as the only worker on
each host. Finally, it evaluates the reports of these workers.
"""

from __future__ import annotations

import argparse
import dataclasses
import select
import shutil
import signal
import time
from collections.abc import Mapping, Sequence

import msgspec

from horovod.common.contract import boot
from horovod.runner.agent.messages import Report
from horovod.runner.base.job_result import JobResult, LaunchError
from horovod.runner.base.linux import SignalQueue
from horovod.runner.command import cli, elastic_flags
from horovod.runner.doctor import findings, mpi, table
from horovod.runner.doctor.report import FAIL, Diagnosis, Finding, HostReport, HostResult
from horovod.runner.elastic.script import ScriptRun
from horovod.runner.job.job import FixedJob
from horovod.runner.job.orders import make_fleet
from horovod.runner.job.watch import wait_for
from horovod.runner.output.output import OutputSink
from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet, Trouble

END_SECONDS = 5.0
WIDTH = 160  # Width of the output in columns if it is not a terminal


class _StoppedError(Exception):
    """Exception that ends the checks when the user interrupts them."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class _Nowhere(OutputSink):
    """Output sink that discards all output of the probes, such as warnings from frameworks."""

    def __init__(self) -> None:
        super().__init__(set(), merged=False)

    def _emit(self, stream: int, data: bytes) -> None:
        pass


def run(namespace: argparse.Namespace, environ: Mapping[str, str], signals: SignalQueue | None = None) -> JobResult:
    """Check the hosts and print the results. The exit code is 0 unless a check has failed.

    Raises:
        LaunchError: If the command line is invalid.
    """
    settings = _settings(namespace, environ)
    try:
        diagnosis = diagnose(settings, environ, signals)
    except _StoppedError as stopped:
        return JobResult(stopped.code, str(stopped))
    print(table.show(diagnosis, shutil.get_terminal_size((WIDTH, 24)).columns), end="")
    return JobResult(0 if diagnosis.healthy else 1)


def _settings(namespace: argparse.Namespace, environ: Mapping[str, str]) -> LaunchSettings:
    """Return settings for a job on -np slots, or on all slots of the hosts if -np is not given."""
    _fix(namespace)
    if namespace.num_proc is None:
        # Do not print the hosts here, because `cli.settings` prints them later.
        chosen = cli.chosen_hosts(namespace, environ, log=False)
        namespace.num_proc = sum(host.slots for host in chosen) if chosen else 1
    return cli.settings(namespace, ["-"], environ)


def _fix(namespace: argparse.Namespace) -> None:
    """Change the options of an elastic job to those of a fixed-size job.

    The job uses the hosts that the discovery script finds now.

    Raises:
        LaunchError: If the discovery script cannot be run, or its output is invalid.
    """
    if namespace.host_discovery_script is not None:
        found = ScriptRun(namespace.host_discovery_script, namespace.slots_per_host).finish()
        if not found:
            raise LaunchError(f"{namespace.host_discovery_script} finds no host now, so there is nothing to check")
        named = {f"[{host}]" if ":" in host else host: count for host, count in found.items()}
        namespace.hosts = ",".join(f"{host}:{count}" for host, count in named.items())
        namespace.num_proc = None
    for name in (*elastic_flags.ONLY, "host_discovery_script", "min_num_proc"):
        setattr(namespace, name, None)


def diagnose(settings: LaunchSettings, environ: Mapping[str, str], signals: SignalQueue | None = None) -> Diagnosis:
    """Check the hosts of this job and return the findings.

    Raises:
        AgentError: If this machine cannot start an agent.
        OSError: If this machine cannot start any process.
    """
    results = reach(settings, environ, signals)
    known = [answer for answer in results if not answer.failure]
    trouble: list[Finding] = []
    if known:
        reports, message = _examine(settings, environ, [answer.host for answer in known], signals)
        for rank, answer in enumerate(known):
            done = dataclasses.replace(answer, rank=rank, report=reports.get(rank))
            results[results.index(answer)] = done
        if message:
            what, _, rest = message.partition("\n")
            trouble = [Finding(FAIL, "examination", "", what, rest)]
    return Diagnosis(results, [*findings.judge(results), *mpi.check_if_selected(environ, results), *trouble])


def reach(settings: LaunchSettings, environ: Mapping[str, str], signals: SignalQueue | None = None) -> list[HostResult]:
    """Start an agent on each host, then stop it. Return one answer per host, within the start timeout."""
    # Start each agent directly. If agents started other agents, the hosts behind an unusable host would not be checked.
    fleet = make_fleet(dataclasses.replace(settings, ssh_fanout=len(settings.slots)), environ)
    failures: dict[str, str] = {}
    seconds: dict[str, float] = {}
    begin = time.monotonic()
    deadline = begin + settings.start_timeout
    try:
        troubles = fleet.start()
        while True:
            failures.update({trouble.agent.host: _without_ranks(trouble.text, trouble.agent) for trouble in troubles})
            now = time.monotonic()
            seconds.update({a.host: now - begin for a in fleet.agents if a.facts is not None and a.host not in seconds})
            waiting = [agent for agent in fleet.waiting if agent.host not in failures]
            if not waiting or now >= deadline:
                break
            troubles = _wait(fleet, deadline, signals)
        for agent in waiting:
            why = fleet.failure_of(agent) or "no answer"
            failures[agent.host] = (
                f"{why} within {settings.start_timeout:g} s\na higher --start-timeout gives it longer"
            )
    finally:
        fleet.abandon_waiting()
        fleet.end(END_SECONDS)
    return [
        HostResult(
            host=agent.host,
            slots=len(agent.slots),
            remote=agent.remote,
            connect_seconds=seconds.get(agent.host, 0.0),
            clock_offset=agent.clock_offset if agent.remote else 0.0,
            gpus_each=settings.options.gpus_per_worker,
            visible_devices=agent.facts.visible_devices if agent.facts is not None else None,
            failure=failures.get(agent.host, ""),
        )
        for agent in fleet.agents
    ]


def _wait(fleet: Fleet, deadline: float, signals: SignalQueue | None) -> list[Trouble]:
    events = fleet.events(listening=True)
    if signals is not None:
        events[signals.fd] = select.POLLIN
    ready = wait_for(events, min(deadline, fleet.next_time() or deadline))
    for number in signals.take() if signals is not None else ():
        if number != signal.SIGTSTP:
            raise _StoppedError(number)
    return [*fleet.receive(ready, _ignore), *fleet.look(time.monotonic(), True)]


def _ignore(agent: Agent, report: Report) -> None:
    """Discard a report from an agent. No job is running yet, so reports other than Hello are not expected."""


def _without_ranks(text: str, agent: Agent) -> str:
    """Remove the prefix `host a (ranks 0-3)` from a message, because the table already shows the host and its ranks."""
    return text.removeprefix(f"host {agent.host} ({agent.ranks})").removeprefix(":").strip()


def _examine(
    settings: LaunchSettings, environ: Mapping[str, str], names: Sequence[str], signals: SignalQueue | None
) -> tuple[dict[int, HostReport], str]:
    """Run the probes. Return their reports by rank, and the job's error message or an empty string."""
    python = {slot.hostname: slot.python for slot in settings.slots}
    available = [hosts.Host(name, 1, python[name]) for name in names]
    slots: list[Slot] = hosts.assign(available, len(names))
    probing = dataclasses.replace(
        settings,
        command=boot.arguments("horovod.runner.doctor.probe"),
        options=msgspec.structs.replace(settings.options, own_python=True, gpus_per_worker=0),
        slots=slots,
        output_filename=None,
        verbose=False,
        collapse=False,
    )
    result = FixedJob(probing, environ, signals=signals, results=True, output=_Nowhere()).run()
    if result.stopped_by is not None:
        raise _StoppedError(result.stopped_by)
    reports, unread = {}, ""
    for rank, data in result.results.items():
        try:
            reports[rank] = msgspec.msgpack.decode(data, type=HostReport)
        except (msgspec.MsgspecError, ValueError) as error:
            unread = f"the report of host {names[rank]} is not understood: {error}"
    return reports, result.message or unread
