"""A job: attempts to run it, of which one of fixed size has one, and what is concluded from them.

What outlives an attempt is made here: the screen, the signals, the policy. What one is made of: `attempt`; when it
ends: `policy`; the loop: `watch`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from horovod.runner.base.job_result import JobResult
from horovod.runner.base.signals import SignalQueue
from horovod.runner.dashboard.audience import Audience
from horovod.runner.dashboard.opening import open_audience
from horovod.runner.job.attempt import Attempt
from horovod.runner.job.orders import make_fleet, store_connections
from horovod.runner.job.policy import Policy
from horovod.runner.job.stdin import StdinSource
from horovod.runner.job.watch import Watch
from horovod.runner.output.output import OutputSink
from horovod.runner.output.rank_files import RankFileError
from horovod.runner.output.screen import Screen
from horovod.runner.plan.settings import LaunchSettings
from horovod.runner.reach.fleet import Fleet
from horovod.runner.verdict import verdict


class Job:
    """Runs once. `payload` is a file for all workers; `results` asks for what they leave in their result files."""

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
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stdin = stdin
        self._signals = signals
        self._payload = payload
        self._want_results = results
        self._output = output

    def run(self) -> JobResult:
        """Start, watch, end. Whatever happens, nothing of the job runs on afterwards. Raises LaunchError before any
        file is touched, AgentError, OSError.
        """
        fleet = make_fleet(self._settings, self._environ)
        connections = store_connections(fleet)
        audience = open_audience(self._settings)
        try:
            result = self._run(fleet, connections, audience)
            audience.end(result)
        finally:
            audience.close()
        return result

    def _run(self, fleet: Fleet, connections: int, audience: Audience) -> JobResult:
        screen = Screen(self._settings, self._output, told=self._want_results, audience=audience)
        screen.announce()
        policy = Policy(time.monotonic(), self._settings.start_timeout)
        watch = Watch(screen, policy, self._signals, len(self._settings.slots))
        try:
            attempt = self._attempt(watch, fleet, connections)
        finally:
            try:
                screen.close()
            except RankFileError as error:
                watch.troubles.append(str(error))
        return self._conclude(watch, attempt)

    def _attempt(self, watch: Watch, fleet: Fleet, connections: int) -> Attempt:
        attempt = Attempt(
            self._settings,
            self._environ,
            watch,
            fleet,
            connections,
            stdin=self._stdin,
            payload=self._payload,
            results=self._want_results,
        )
        try:
            watch.run(attempt)
        except KeyboardInterrupt:  # in horovod.run, which leaves signals to its program
            watch.interrupt()
            raise
        finally:
            attempt.close()
        return attempt

    @staticmethod
    def _conclude(watch: Watch, attempt: Attempt) -> JobResult:
        judged = verdict.judge(attempt.endings.ends)
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
        elif watch.screen.queue.broken:
            code = 128 + signal.SIGPIPE
        else:
            code = 1 if texts else 0
            message = message or attempt.remark()
        return JobResult(code, message, failed_rank, attempt.results, headline, next(iter(watch.received), None))
