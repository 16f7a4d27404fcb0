"""Run of a job: one attempt and its result.

This module creates what outlives the attempt: the screen, the signals and the policy. `attempt` or, in elastic jobs,
`elastic_attempt` runs the processes. `policy` decides when the attempt ends, and `watch` is the event loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from horovod.runner.attribution import first_failure
from horovod.runner.base import linux
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.signals import SignalQueue
from horovod.runner.dashboard import open_sink
from horovod.runner.job.attempt import Attempt
from horovod.runner.job.orders import make_fleet, remote_of, store_connections
from horovod.runner.job.policy import Policy
from horovod.runner.job.terminal import StdinSource
from horovod.runner.job.watch import Watch
from horovod.runner.output.display import Screen
from horovod.runner.output.output import OutputSink
from horovod.runner.output.rank_files import RankFileError
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.remote.fleet import Fleet

if TYPE_CHECKING:
    from horovod.runner.elastic.finder import Finder, Source
    from horovod.runner.job.elastic_attempt import ElasticAttempt


class Job:
    """Job that can be run once."""

    def __init__(
        self,
        settings: LaunchSettings,
        environ: Mapping[str, str],
        *,
        stdin: StdinSource | None = None,
        signals: SignalQueue | None = None,
        payload: bytes | None = None,
        results: bool = False,
        output: OutputSink | None = None,
        fleet: Fleet | None = None,
        source: Source | None = None,
    ) -> None:
        """Store the arguments. Nothing starts before `run`.

        Args:
            settings: Settings of the job.
            environ: Environment variables of the launcher.
            stdin: Standard input for rank 0.
            signals: Signals to which the job reacts.
            payload: Contents of a file that all workers inherit.
            results: True to collect the workers' result files.
            output: Destination of the job's output; by default this process's stdout and stderr.
            fleet: Agents to use instead of those that the settings describe.
            source: Source of an elastic job's hosts instead of the one that the settings describe. It is closed at the
                end.
        """
        self._settings = settings
        self._environ = environ
        self._stdin = stdin
        self._signals = signals
        self._payload = payload
        self._want_results = results
        self._output = output
        self._fleet = fleet
        self._source = source

    def run(self) -> JobResult:
        """Run the job to its end. Afterwards, none of its processes runs, even if an exception is raised.

        Raises:
            LaunchError: The job cannot start. No file has been changed.
            AgentError: An agent cannot be started.
            OSError: The store, a socket or a file cannot be opened.
        """
        if not self._settings.options.whole_environment:
            linux.working_directory()
        elastic = self._settings.elastic
        if elastic is not None:
            return self._run_elastic(elastic)
        fleet = self._fleet or make_fleet(self._settings, self._environ)
        connections = store_connections(fleet)
        sink = open_sink(self._settings)
        try:
            screen = Screen(self._settings, self._output, told=self._want_results, sink=sink)
            screen.announce()
            result = self._run(
                screen, self._settings.start_timeout, lambda watch: self._fixed(watch, fleet, connections)
            )
            sink.end(result)
        finally:
            sink.close()
        return result

    def _run_elastic(self, elastic: ElasticSettings) -> JobResult:
        # Import here, because only elastic jobs need it.
        from horovod.runner.job.elastic_attempt import ElasticAttempt
        from horovod.runner.job.roster import Roster

        fleet = self._fleet or self._lasting_fleet()
        roster = Roster()
        with contextlib.closing(self._source or self._finder(elastic)) as finder:
            screen = Screen(
                self._settings, self._output, told=self._want_results, hosts=roster.hosts, rank_of=roster.rank_of
            )
            result = self._run(
                screen,
                None,
                lambda watch: ElasticAttempt(
                    self._settings,
                    elastic,
                    self._environ,
                    watch,
                    fleet,
                    finder,
                    roster,
                    payload=self._payload,
                    results=self._want_results,
                ),
            )
        return dataclasses.replace(result, hosts=roster.last_hosts)

    def _lasting_fleet(self) -> Fleet:
        remote = remote_of(self._settings, self._environ)
        return Fleet([], remote, fanout=self._settings.ssh_fanout, silence=self._settings.heartbeat_timeout)

    def _finder(self, elastic: ElasticSettings) -> Finder:
        from horovod.runner.elastic import slurm_nodes
        from horovod.runner.elastic.finder import Finder

        if elastic.slurm_job:
            command = slurm_nodes.command(elastic.slots)
            return Finder(f"the list of nodes of Slurm's job {elastic.slurm_job}", None, {}, command, slurm_nodes.EVERY)
        fixed = {host.name: host.slots for host in elastic.hosts}
        return Finder(elastic.script, elastic.slots, fixed, names=self._settings.names)

    def _fixed(self, watch: Watch, fleet: Fleet, connections: int) -> Attempt:
        return Attempt(
            self._settings,
            self._environ,
            watch,
            fleet,
            connections,
            stdin=self._stdin,
            payload=self._payload,
            results=self._want_results,
        )

    def _run(
        self, screen: Screen, start_timeout: float | None, make: Callable[[Watch], Attempt | ElasticAttempt]
    ) -> JobResult:
        """Run an attempt. `start_timeout` is None if the attempt applies its own timeout."""
        policy = Policy(time.monotonic(), start_timeout, self._settings.grace)
        watch = Watch(screen, policy, self._signals, self._settings.size)
        try:
            attempt = self._try(watch, make)
        finally:
            try:
                screen.close()
            except RankFileError as error:
                watch.troubles.append(str(error))
        return self._conclude(watch, attempt)

    @staticmethod
    def _try(watch: Watch, make: Callable[[Watch], Attempt | ElasticAttempt]) -> Attempt | ElasticAttempt:
        attempt = make(watch)
        try:
            watch.run(attempt)
        finally:
            attempt.close()
        return attempt

    @staticmethod
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
