"""Jobs whose agents arrive, run to their end by the process that has called: `horovod.run` for a cluster's manager."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.common.contract import boot
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.names import ARGUMENTS, Names
from horovod.runner.base.signals import SignalQueue, interrupts
from horovod.runner.cluster import placement
from horovod.runner.cluster.gathering import Arrived, Gathering
from horovod.runner.cluster.source import ArrivalSource
from horovod.runner.command import cli
from horovod.runner.function import package, results
from horovod.runner.job.job import Job
from horovod.runner.output.output import OutputSink
from horovod.runner.output.stream_output import StreamOutput, standard_output
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.reach import arrived, ssh
from horovod.runner.reach.agents import Agent
from horovod.runner.reach.fleet import Fleet


class Call:
    """What every rank does, as it is sent to them."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Raises TypeError naming what cannot be called or sent."""
        self.payload = package.pack(function, args, {} if kwargs is None else kwargs, "fn")


@dataclass(frozen=True)
class Wishes:
    """What the caller wants of a job beside what it does.

    `start_timeout`: s for the first agents to come; `advice`: what to look at when they do not, or what tells it then.
    `environ`: variables of the workers, over those of the processes that become their agents; `executable` in place of
    the Python of those. `nics`: interfaces for the ranks. `stdout`, `stderr`: text streams for what ranks print, None:
    this process's own. `names`: what the caller calls what it can set. `handlers`: packages whose handlers of SIGINT do
    no more for the caller than Python's own, see ``interrupts``.
    """

    start_timeout: float = 600.0
    advice: str | Callable[[], str] = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    executable: str | None = None
    nics: Sequence[str] = ()
    timestamp: bool = False
    verbose: bool = False
    stdout: Any = None
    stderr: Any = None
    names: Names = ARGUMENTS
    handlers: tuple[str, ...] = ()

    def sink(self) -> OutputSink:
        """Where output goes."""
        if self.stdout is None and self.stderr is None:
            return standard_output()
        return StreamOutput(self.stdout or sys.stdout, self.stderr or sys.stderr)


def run_fixed(gathering: Gathering, call: Call, num_proc: int, wishes: Wishes) -> list[Any]:
    """Calls on `num_proc` ranks, as soon as as many agents have come, and returns the results by rank. The gathering is
    closed then; agents are to have the numbers 0 to num_proc - 1.

    Raises TimeoutError, ArrivalError, or what `Gathering.fail` was given, when they do not come; WorkerError,
    as `horovod.run`, when a rank or its agent fails.
    """
    here = gathering.wait(num_proc, wishes.start_timeout, wishes.advice)
    try:
        gathering.close()
        by_number = {each.number: each for each in here[:num_proc]}
        placed = placement.place({number: each.machine for number, each in by_number.items()})
        settings, environ = _settings(wishes, [slot for _, slot in placed], None)
        way = arrived.Arrived()
        agents = [_agent(by_number[number], slot, way) for number, slot in placed]
        fleet = _fleet(agents, settings, way)
        result = _run(call, wishes, settings, environ, fleet)
        return results.by_rank(result, {slot.rank: slot.hostname for _, slot in placed})
    finally:
        for each in here:
            each.connection.kill()


def run_elastic(gathering: Gathering, call: Call, elastic: ElasticSettings, wishes: Wishes) -> list[Any]:
    """The same with agents that come and go; each is a slot. Begins when `elastic.start` are there, and returns the
    results of the last `elastic.least` first ranks."""
    way = arrived.Arrived()
    source = ArrivalSource(gathering, way, elastic.most or elastic.start)
    for each in gathering.wait(elastic.start, wishes.start_timeout, wishes.advice):
        source.add(each)
    try:
        settings, environ = _settings(wishes, [], elastic)
        assert settings.elastic is not None
        fleet = _fleet([], settings, way)
        result = _run(call, wishes, settings, environ, fleet, source)
    finally:
        source.close()
    return results.of_elastic(result, elastic.least)


def run_command(
    gathering: Gathering,
    settings: LaunchSettings,
    environ: Mapping[str, str],
    wishes: Wishes,
    take_signals: Callable[[], SignalQueue | None],
) -> JobResult:
    """What `horovodrun` does with these settings, on agents that arrive: as many as the job begins with. Of `wishes`
    `start_timeout` and `advice` count. Signals are taken once all are there.

    Raises as `run_fixed` when they do not come; how the job ends is in the result.
    """
    way = arrived.Arrived()
    here = gathering.wait(settings.size, wishes.start_timeout, wishes.advice)
    if settings.elastic is not None:
        source = ArrivalSource(gathering, way, settings.elastic.most or settings.elastic.start)
        for each in here:
            source.add(each)
        with contextlib.closing(source):
            fleet = _fleet([], settings, way)
            return Job(settings, environ, signals=take_signals(), fleet=fleet, source=source).run()
    try:
        gathering.close()
        by_number = {each.number: each for each in here[: settings.size]}
        placed = placement.place({number: each.machine for number, each in by_number.items()})
        settings = replace(settings, slots=[slot for _, slot in placed])
        fleet = _fleet([_agent(by_number[number], slot, way) for number, slot in placed], settings, way)
        return Job(settings, environ, signals=take_signals(), fleet=fleet).run()
    finally:
        for each in here:
            each.connection.kill()


def _run(
    call: Call,
    wishes: Wishes,
    settings: LaunchSettings,
    environ: Mapping[str, str],
    fleet: Fleet,
    source: ArrivalSource | None = None,
) -> JobResult:
    """Run a job with this fleet. Ctrl-C in the caller reaches the ranks first."""
    with interrupts(wishes.handlers) as queue:
        job = Job(
            settings,
            environ,
            signals=queue,
            payload=call.payload,
            results=True,
            output=wishes.sink(),
            fleet=fleet,
            source=source,
        )
        return job.run()


def _settings(
    wishes: Wishes, slots: list[Slot], elastic: ElasticSettings | None
) -> tuple[LaunchSettings, dict[str, str]]:
    """And the environment that they were checked with: of ours only what is meant for Horovod, wherever it runs."""
    environ = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    settings = LaunchSettings(
        command=[*filter(None, [wishes.executable]), *boot.words("horovod.runner.function.worker")],
        own_python=not wishes.executable,
        slots=slots,
        variables={**wishes.environ, **cli.interface_variables(wishes.nics, [])},
        timestamp=wishes.timestamp,
        verbose=wishes.verbose,
        at_home=True,
        elastic=elastic,
        names=wishes.names,
    )
    return cli.with_variables(settings, environ), environ


def _agent(each: Arrived, slot: Slot, way: arrived.Arrived) -> Agent:
    way.add(each.name, each.connection)
    return Agent(each.name, [slot], remote=True)


def _fleet(agents: list[Agent], settings: LaunchSettings, way: arrived.Arrived) -> Fleet:
    return Fleet(agents, ssh.Remote(), fanout=settings.ssh_fanout, silence=settings.heartbeat_timeout, way=way)
