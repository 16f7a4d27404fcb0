"""Fixed-size jobs and elastic jobs.

`FixedJob` and `ElasticJob` create the terminal display, the policy and the source of hosts. `attempt` or
`elastic_attempt` runs the processes. `policy` decides when the attempt ends, and `watch` contains the event loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from horovod.runner.attribution import first_failure
from horovod.runner.base import linux
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.linux import SignalQueue
from horovod.runner.dashboard import open_sink
from horovod.runner.job.attempt import Attempt
from horovod.runner.job.orders import make_fleet, remote_of, store_connections
from horovod.runner.job.policy import Policy
from horovod.runner.job.terminal import StdinSource
from horovod.runner.job.watch import Watch
from horovod.runner.output.display import Screen
from horovod.runner.output.output import OutputSink
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.remote.fleet import Fleet

if TYPE_CHECKING:
    from horovod.runner.elastic.finder import Finder, Source
    from horovod.runner.job.elastic_attempt import ElasticAttempt


@dataclass(repr=False)
class Job(ABC):
    """Job that can be run once. Nothing is started before `run` is called.

    Attributes:
        settings: Job settings.
        environ: The launcher's environment variables.
        signals: Queue of signals that the job must handle.
        payload: Contents of a file that all workers inherit.
        results: True to collect the workers' result files.
        output: Destination of the job's output. The default is this process's stdout and stderr.
        fleet: Agents to use instead of the agents on the hosts in the settings.
    """

    settings: LaunchSettings
    environ: Mapping[str, str]
    _: KW_ONLY
    signals: SignalQueue | None = None
    payload: bytes | None = None
    results: bool = False
    output: OutputSink | None = None
    fleet: Fleet | None = None

    def run(self) -> JobResult:
        """Run the job to completion, and return the result.

        All processes of the job have exited when this method returns or raises an exception.

        Raises:
            LaunchError: If the job cannot start. No files have been changed.
            AgentError: If an agent cannot be started.
            OSError: If the store, a socket or a file cannot be opened.
        """
        if not self.settings.options.whole_environment:
            linux.working_directory()
        return self._run()

    @abstractmethod
    def _run(self) -> JobResult:
        """Run the job. Subclasses create the objects that must outlive the attempt to run it."""

    def _run_attempt(
        self, screen: Screen, start_timeout: float | None, make: Callable[[Watch], Attempt | ElasticAttempt]
    ) -> JobResult:
        """Run one attempt at the job, and return its result.

        `start_timeout` is None if the attempt has its own timeout.
        """
        policy = Policy(time.monotonic(), start_timeout, self.settings.grace)
        watch = Watch(screen, policy, self.signals, self.settings.size)
        return _conclude(watch, watch.run_to_end(make))


@dataclass(repr=False)
class FixedJob(Job):
    """Job with a fixed set of ranks. The data from `stdin` is passed to rank 0."""

    stdin: StdinSource | None = field(default=None, kw_only=True)

    def _run(self) -> JobResult:
        fleet = self.fleet or make_fleet(self.settings, self.environ)
        connections = store_connections(fleet)
        with contextlib.closing(open_sink(self.settings)) as sink:
            screen = Screen(self.settings, self.output, raises=self.results, sink=sink)
            screen.announce()
            result = self._run_attempt(
                screen,
                self.settings.start_timeout,
                lambda watch: Attempt(
                    self.settings,
                    self.environ,
                    watch,
                    fleet,
                    connections,
                    stdin=self.stdin,
                    payload=self.payload,
                    results=self.results,
                ),
            )
            sink.end(result)
        return result


@dataclass(repr=False)
class ElasticJob(Job):
    """Job whose workers can change while it runs.

    Attributes:
        source: Object that finds hosts, used instead of the one in the settings. The job closes it at the end.
    """

    source: Source | None = field(default=None, kw_only=True)

    def _run(self) -> JobResult:
        # Import lazily, because most jobs are not elastic.
        from horovod.runner.job.elastic_attempt import ElasticAttempt
        from horovod.runner.job.membership_server import Roster

        elastic = self.settings.elastic
        assert elastic is not None
        fleet = self.fleet or self._lasting_fleet()
        roster = Roster()
        with contextlib.closing(self.source or self._finder(elastic)) as finder:
            screen = Screen(self.settings, self.output, raises=self.results, hosts=roster.hosts, rank_of=roster.rank_of)
            result = self._run_attempt(
                screen,
                None,
                lambda watch: ElasticAttempt(
                    self.settings,
                    elastic,
                    self.environ,
                    watch,
                    fleet,
                    finder,
                    roster,
                    payload=self.payload,
                    results=self.results,
                ),
            )
        return dataclasses.replace(result, hosts=roster.last_hosts)

    def _lasting_fleet(self) -> Fleet:
        remote = remote_of(self.settings, self.environ)
        return Fleet([], remote, fanout=self.settings.ssh_fanout, silence=self.settings.heartbeat_timeout)

    def _finder(self, elastic: ElasticSettings) -> Finder:
        from horovod.runner.elastic import script
        from horovod.runner.elastic.finder import Finder

        if elastic.slurm_job:
            command = script.slurm_command(elastic.slots)
            return Finder(
                f"the list of nodes of Slurm's job {elastic.slurm_job}", None, {}, command, script.SLURM_EVERY
            )
        fixed = {host.name: host.slots for host in elastic.hosts}
        return Finder(elastic.script, elastic.slots, fixed, names=self.settings.names)


def make_job(
    settings: LaunchSettings, environ: Mapping[str, str], *, stdin: StdinSource | None = None, **options: Any
) -> Job:
    """Create the job described by the settings. `options` are additional keyword arguments of `Job`.

    Elastic jobs ignore `stdin`.
    """
    if settings.elastic is not None:
        return ElasticJob(settings, environ, **options)
    return FixedJob(settings, environ, stdin=stdin, **options)


def _conclude(watch: Watch, attempt: Attempt | ElasticAttempt) -> JobResult:
    judged = first_failure.judge(attempt.ends)
    texts = [*attempt.lost, *watch.troubles]
    headlines = list(texts)
    failed_rank = None
    if judged is not None and not (texts and judged.victim):
        texts.append(judged.text)
        headlines.append(judged.headline)
        failed_rank = judged.rank
    message, headline = "\n".join(texts), "\n".join(headlines)
    if watch.received:
        code = 128 + watch.received[0]
        message = "\n".join([*texts, f"stopped by {signal.Signals(watch.received[0]).name}"])
    elif judged is not None:
        code = judged.exit_code
    elif watch.screen.queue.reader_gone:
        code = 128 + signal.SIGPIPE
    else:
        code = 1 if texts else 0
        message = message or attempt.remark()
    return JobResult(code, message, failed_rank, attempt.results, headline, next(iter(watch.received), None))
