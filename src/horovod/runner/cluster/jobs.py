"""Functions that run jobs on agents started by a cluster manager."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horovod.common.contract import boot
from horovod.runner.base.arguments import ARGUMENTS, Names
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.linux import SignalQueue, interrupts
from horovod.runner.cluster.gathering import Arrived, Gathering
from horovod.runner.command import cli
from horovod.runner.elastic.finder import Discovered, DiscoveryFailed
from horovod.runner.function import outcome
from horovod.runner.job.job import ElasticJob, FixedJob, Job
from horovod.runner.output.output import OutputSink, StreamOutput, standard_output
from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings, WorkerOptions
from horovod.runner.remote import arrived, ssh
from horovod.runner.remote.connections import Agent
from horovod.runner.remote.fleet import Fleet


class ArrivalSource:
    """Source of hosts for elastic jobs. Each connected agent is treated as a host with one slot.

    Args:
        gathering: Server to which the agents connect.
        reach: Object through which the job opens the agents' connections.
        most: Maximum number of agents at the same time.
    """

    def __init__(self, gathering: Gathering, reach: arrived.Arrived, max_hosts: int) -> None:
        self._gathering = gathering
        self._max_hosts = max_hosts
        self._reach = reach
        self._here: dict[str, Arrived] = {}
        self._machines: dict[str, str] = {}
        self._changed = True
        self._over = False
        self._reported = False

    def add(self, each: Arrived) -> None:
        """Add an agent that the server has admitted."""
        self._here[each.name] = each
        self._machines[each.name] = each.machine
        self._reach.add(each.name, each.connection)
        self._changed = True

    def events(self) -> dict[int, int]:
        if self._over:
            return {}
        # Detect the loss of agents that the job has not started to use. The job itself polls all other agents.
        idle = [self._here[name].connection for name in self._reach.waiting if name in self._here]
        return {self._gathering.fd: select.POLLIN, **{each.fd: select.POLLRDHUP for each in idle if each.fd >= 0}}

    def next_time(self) -> float | None:
        return 0.0 if self._changed and not self._over else None

    def look(self, now: float) -> Discovered | DiscoveryFailed | None:
        if self._over:
            return None
        new, news, trouble = self._gathering.take()
        for each in new:
            self.add(each)
        for name in [name for name in self._reach.waiting if name in self._here and self._here[name].connection.closed]:
            self.lost(name)
        if trouble is not None and not self._reported:
            self._reported = True  # The job continues without new agents, so report the reason only once.
            news = [*news, str(trouble)]
        if news:
            return DiscoveryFailed("\n".join(news), first=False)
        if not self._changed:
            return None
        self._changed = False
        return Discovered(dict.fromkeys(self._here, 1), certain=True, complete=len(self._here) >= self._max_hosts)

    def lost(self, host: str) -> None:
        if self._here.pop(host, None) is not None:
            self._reach.drop(host)
            self._changed = True

    def machine_of(self, host: str) -> str:
        return self._machines[host]

    def close(self) -> None:
        self._over = True
        self._gathering.close()
        self._reach.close()


class Call:
    """A function and its arguments, serialized to be sent to the ranks."""

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Serialize the function and its arguments.

        Raises TypeError if the function does not accept them or pickling fails.
        """
        self.payload = outcome.pack(function, args, {} if kwargs is None else kwargs, "fn")


@dataclass(frozen=True)
class JobOptions:
    """Options of a job whose agents were started by a cluster manager.

    Attributes:
        start_timeout: Seconds to wait until enough agents have connected.
        advice: Advice to show if too few agents connect in time, or a function that returns it.
        environ: Environment variables for the workers. They override the variables of the agents.
        executable: Python interpreter of the workers. The default is the agent's interpreter.
        nics: Network interfaces for the ranks to use.
        timestamp: True to show the time before each line of output.
        verbose: True to show what the launcher starts.
        stdout: Text stream for the ranks' output, or None for this process's stdout.
        stderr: Text stream for the ranks' errors, or None for this process's stderr.
        names: Names of the settings in messages.
        handlers: Packages whose SIGINT handlers are treated like Python's default handler. See ``interrupts``.
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
        """Return the sink to which the job's output is written."""
        if self.stdout is None and self.stderr is None:
            return standard_output()
        return StreamOutput(self.stdout or sys.stdout, self.stderr or sys.stderr)


def run_fixed(gathering: Gathering, call: Call, num_proc: int, options: JobOptions) -> list[Any]:
    """Call the function on `num_proc` ranks, and return the results in rank order.

    This function waits until enough agents are connected. The agents must have the numbers 0 to num_proc - 1. No
    further agents are admitted afterwards, because the function closes `gathering`.

    Raises:
        TimeoutError: If too few agents have connected in time.
        ArrivalError: If an agent was rejected, for example because of its version of horovod.
        WorkerError: If a rank or its agent has failed. See `horovod.run`.
        BaseException: If `Gathering.fail` was called; the error that was passed to it.
    """
    here = gathering.wait(num_proc, options.start_timeout, options.advice)
    try:
        gathering.close()
        by_number = {each.number: each for each in here[:num_proc]}
        placed = hosts.place({number: each.machine for number, each in by_number.items()})
        settings, environ = _settings(options, [slot for _, slot in placed], None)
        reach = arrived.Arrived()
        agents = [_agent(by_number[number], slot, reach) for number, slot in placed]
        fleet = _fleet(agents, settings, reach)
        result = _run(call, options, FixedJob(settings, environ, fleet=fleet))
        return outcome.by_rank(result, {slot.rank: slot.hostname for _, slot in placed})
    finally:
        for each in here:
            each.connection.kill()


def run_elastic(gathering: Gathering, call: Call, elastic: ElasticSettings, options: JobOptions) -> list[Any]:
    """Call the function in an elastic job in which each agent provides one slot.

    The job starts when `elastic.start` agents are connected.

    Returns:
        Results of the first `elastic.least` ranks of the last epoch.
    """
    reach = arrived.Arrived()
    source = ArrivalSource(gathering, reach, elastic.max_np or elastic.start)
    for each in gathering.wait(elastic.start, options.start_timeout, options.advice):
        source.add(each)
    try:
        settings, environ = _settings(options, [], elastic)
        assert settings.elastic is not None
        fleet = _fleet([], settings, reach)
        result = _run(call, options, ElasticJob(settings, environ, fleet=fleet, source=source))
    finally:
        source.close()
    return outcome.of_elastic(result, elastic.least)


def run_command(
    gathering: Gathering,
    settings: LaunchSettings,
    environ: Mapping[str, str],
    options: JobOptions,
    take_signals: Callable[[], SignalQueue | None],
) -> JobResult:
    """Run a command as `horovodrun` does, on agents that connect to the launcher.

    Args:
        gathering: Server to which the agents connect.
        settings: Job settings.
        environ: The launcher's environment variables.
        options: Options, of which only `start_timeout` and `advice` are used.
        take_signals: Function that returns the queue of signals. It is called when all agents are connected.

    Returns:
        Result of the job, even if it has failed.

    Raises:
        Exception: If the agents did not connect. The errors are the same as those of `run_fixed`.
    """
    reach = arrived.Arrived()
    here = gathering.wait(settings.size, options.start_timeout, options.advice)
    if settings.elastic is not None:
        source = ArrivalSource(gathering, reach, settings.elastic.max_np or settings.elastic.start)
        for each in here:
            source.add(each)
        with contextlib.closing(source):
            fleet = _fleet([], settings, reach)
            return ElasticJob(settings, environ, signals=take_signals(), fleet=fleet, source=source).run()
    try:
        gathering.close()
        by_number = {each.number: each for each in here[: settings.size]}
        placed = hosts.place({number: each.machine for number, each in by_number.items()})
        settings = replace(settings, slots=[slot for _, slot in placed])
        fleet = _fleet([_agent(by_number[number], slot, reach) for number, slot in placed], settings, reach)
        return FixedJob(settings, environ, signals=take_signals(), fleet=fleet).run()
    finally:
        for each in here:
            each.connection.kill()


def _run(call: Call, options: JobOptions, job: Job) -> JobResult:
    """Run a job that calls the function on each rank. If the user presses Ctrl-C, first interrupt the ranks."""
    with interrupts(options.handlers) as queue:
        return replace(job, signals=queue, payload=call.payload, results=True, output=options.sink()).run()


def _settings(
    options: JobOptions, slots: list[Slot], elastic: ElasticSettings | None
) -> tuple[LaunchSettings, dict[str, str]]:
    """Return the job's settings and environment. Only Horovod's own variables are copied from this process."""
    environ = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    settings = LaunchSettings(
        command=[*filter(None, [options.executable]), *boot.arguments("horovod.runner.function.worker")],
        options=WorkerOptions(own_python=not options.executable, whole_environment=True),
        slots=slots,
        variables={**options.environ, **cli.interface_variables(options.nics, [])},
        timestamp=options.timestamp,
        verbose=options.verbose,
        elastic=elastic,
        names=options.names,
    )
    return cli.with_variables(settings, environ), environ


def _agent(each: Arrived, slot: Slot, reach: arrived.Arrived) -> Agent:
    reach.add(each.name, each.connection)
    return Agent(each.name, [slot], remote=True)


def _fleet(agents: list[Agent], settings: LaunchSettings, reach: arrived.Arrived) -> Fleet:
    return Fleet(agents, ssh.Remote(), fanout=settings.ssh_fanout, silence=settings.heartbeat_timeout, reach=reach)
