"""The tuner between steps: when it measures, what it changes, and what it leaves alone. Its job is simulated."""

import pytest

from horovod.common.autotune.tuner import Tuner, make_plan
from horovod.common.contract.settings import Settings
from horovod.common.frontends import Job
from horovod.common.training_loop.gradients import BucketSizes, bucket_tuning

KIB, MIB = 1 << 10, 1 << 20
TUNING = {"chunk_bytes": 128 * KIB, "pair_bytes": 512 * KIB, "doubling_bytes": 16 * KIB, "slice_pair_bytes": 512 * KIB}
HERE = Job(0, 2, 0, 2, 0, 1, True, False)
APART = Job(0, 2, 0, 1, 0, 2, True, False)


def names(plan):
    return [parameter.name for parameter in plan.parameters]


def test_tuned_parameters():
    def plan(job=HERE, fixed=(), step_bytes=100 * MIB, buckets=True, threshold=128 * MIB):
        return make_plan(job, frozenset(fixed), threshold, TUNING, step_bytes, buckets)

    assert names(plan()) == ["fusion_bytes", "bucket_bytes", "small_bytes", "chunk_bytes"]
    assert plan().initial == {
        "fusion_bytes": 16 * MIB,
        "bucket_bytes": 4 * MIB,
        "small_bytes": 256 << 10,
        "chunk_bytes": 128 << 10,
    }
    assert names(plan(job=APART, buckets=False)) == ["fusion_bytes", "pair_bytes"]
    nested = Job(0, 4, 0, 2, 0, 2, True, False)
    assert names(plan(job=nested, buckets=False)) == ["fusion_bytes", "chunk_bytes", "slice_pair_bytes"]
    assert names(plan(fixed=["HOROVOD_FUSION_THRESHOLD"])) == ["bucket_bytes", "small_bytes", "chunk_bytes"]
    assert names(plan(fixed=["HOROVOD_TUNING"], buckets=False)) == ["fusion_bytes"]
    assert plan(step_bytes=3 * MIB).parameters[0].high == plan(step_bytes=3 * MIB).initial["fusion_bytes"] == 4 * MIB
    assert names(plan(step_bytes=1000)) == ["chunk_bytes"]


class Engine:
    """A job whose step time depends on the fusion threshold."""

    tuning = "chunk_bytes=8192"

    def __init__(self):
        self.threshold, self.schedules, self.steps, self.speed = 128 * MIB, 1, 0, 1.0
        self.changes = []
        self._countdown = 0

    def retune(self, threshold, tuning):
        assert "chunk_bytes=8192" in tuning
        self.changes.append(threshold)
        self.threshold, self._countdown = threshold, 3

    def stats(self):
        return {"schedules": self.schedules, "bytes": self.steps * 8 * MIB, "period_bytes": 8 * MIB, "period_hash": 7}

    def step(self):
        """Return the step's time: long while ranks change, then short for a threshold of 2 MiB."""
        self.steps += 1
        changing = self._countdown > 0
        if changing:
            self._countdown -= 1
            self.schedules += self._countdown == 0
        return (5.0 if changing else 1.0 if self.threshold == 2 * MIB else 1.5) * self.speed


class Report:
    def __init__(self, stored=None):
        self.lines, self.rows, self.kept, self.stored = [], [], [], stored

    def say(self, text):
        self.lines.append(text)

    def row(self, values, sample, step_bytes):
        assert step_bytes == 8 * MIB
        self.rows.append((values["fusion_bytes"], sample.seconds))

    def keep(self, values, seconds, gain, done):
        self.kept.append((values["fusion_bytes"], done))

    def find(self, initial):
        return self.stored


@pytest.fixture
def tuner():
    bucket_tuning.requested, before = None, bucket_tuning.used
    bucket_tuning.used = False

    def make(report, *, searches=True, fixed=("HOROVOD_TUNING",)):
        engine = Engine()
        settings = Settings().with_values({"HOROVOD_AUTOTUNE": searches, "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": 5})
        return engine, Tuner(HERE, engine, settings, frozenset(fixed), report)

    yield make
    bucket_tuning.requested, bucket_tuning.used = None, before


def train(engine, tuner, steps):
    now = 0.0
    for _ in range(steps):
        now += engine.step()
        tuner.stepped(now)


def test_autotune_search(tuner):
    report = Report()
    engine, tuning = tuner(report)
    train(engine, tuning, 10)
    assert not report.lines
    train(engine, tuning, 300)
    assert tuning.idle
    assert engine.threshold == 2 * MIB
    assert {seconds for _, seconds in report.rows} == {1.0, 1.5}  # no sample contains a step of a change
    assert report.rows[0] == (8 * MIB, 1.5)
    assert report.rows[-1] == (2 * MIB, 1.0)
    assert report.kept[-1] == (2 * MIB, True)
    assert report.lines[0].startswith("tuning fusion_bytes of steps that reduce 8.0 MiB: at most 20 candidates")
    assert "1000.00 ms instead of 1500.00 ms (33.3% less) with fusion_bytes=2097152" in report.lines[-1]
    assert set(engine.changes) <= {128 * MIB, *(1 << n for n in range(16, 24))}  # the initial value is what was set


def test_tuning_again_after_a_lasting_change(tuner):
    report = Report()
    engine, tuning = tuner(report)
    train(engine, tuning, 300)
    assert tuning.idle
    engine.speed = 1.1
    train(engine, tuning, 400)
    assert tuning.idle
    engine.speed = 2.0
    train(engine, tuning, 230)
    assert not tuning.idle
    assert "a step has taken 2000.00 ms lately instead of 1000.00 ms" in " ".join(report.lines)
    train(engine, tuning, 300)
    assert tuning.idle
    assert engine.threshold == 2 * MIB


@pytest.mark.parametrize("searches", [True, False])
def test_stored_results_are_used(tuner, searches):
    report = Report(stored=({"fusion_bytes": 2 * MIB}, True))
    engine, tuning = tuner(report, searches=searches)
    train(engine, tuning, 5)  # long before a search would begin
    assert engine.changes == [2 * MIB]
    assert tuning.idle


def test_an_interrupted_search_continues_from_its_best(tuner):
    """An elastic job starts another epoch, perhaps on hosts where other parameters matter."""
    report = Report(stored=({"fusion_bytes": 1 * MIB, "pair_bytes": 5}, False))
    engine, tuning = tuner(report)
    train(engine, tuning, 300)
    assert report.rows[0] == (1 * MIB, 1.5)
    assert engine.threshold == 2 * MIB
    assert tuning.idle


def test_nothing_changes_without_parameters_to_tune(tuner):
    report = Report()
    engine, tuning = tuner(report, fixed=("HOROVOD_TUNING", "HOROVOD_FUSION_THRESHOLD"))
    train(engine, tuning, 60)
    assert engine.changes == []
    assert report.lines == ["there is nothing to tune: the settings that matter for this job are set by the user"]
    engine, tuning = tuner(report, searches=False)  # reuse without a stored result
    train(engine, tuning, 60)
    assert engine.changes == []


def test_bucket_sizes_are_requested_together(tuner):
    bucket_tuning.used = True
    engine, tuning = tuner(
        Report(stored=({"fusion_bytes": 8 * MIB, "bucket_bytes": 2 * MIB, "small_bytes": 4096}, True))
    )
    train(engine, tuning, 60)
    assert bucket_tuning.requested == BucketSizes(2 * MIB, 4096)
    assert bucket_tuning.requested.first == MIB // 2
