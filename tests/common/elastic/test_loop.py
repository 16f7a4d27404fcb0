"""The retry loop around an elastic program's function."""

import os
from unittest import mock

import pytest

from horovod.common.elastic import HostUpdateResult, notification_manager, run_fn
from horovod.common.elastic.agreement import Outcome, Standing
from horovod.common.elastic.state import Keeping
from horovod.common.elastic.updates import sync_state
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.training_loop.steps import marks


def played(*events):
    """Return a state, a function that raises or returns the events in turn, and the calls in their order."""
    calls = mock.Mock()
    calls.func.side_effect = list(events)
    calls.func.__name__ = "train"
    return calls, run_fn(calls.func, calls.reset)


def names(calls):
    return [
        call[0]
        for call in calls.mock_calls
        if call[0] in {"state.sync", "state.restore", "state.on_reset", "func", "reset"}
    ]


@pytest.mark.parametrize(("whole", "counts"), [(True, (1, 2)), (False, (0, None))])
def test_a_complete_state_discards_later_steps_of_others(monkeypatch, whole, counts):
    calls = []
    monkeypatch.setattr(marks, "back", lambda *args: calls.append(args))
    _, run = played(HorovodInternalError("lost"), 7)
    state = mock.MagicMock(spec=Keeping)
    state.settle.side_effect = [Outcome(0, False), Outcome(1, False, 2) if whole else Outcome(0, True)]
    assert run(state) == 7
    assert calls == [counts]


def test_training_resumes_from_the_last_commit():
    calls, run = played(HorovodInternalError("lost"), HorovodInternalError("lost"), 7)
    assert run(calls.state) == 7
    again = ["state.restore", "reset", "state.on_reset", "state.sync", "func"]
    assert names(calls) == ["state.sync", "func", *again, *again]


@pytest.mark.parametrize("skip", [True, False])
def test_after_hosts_have_changed(skip):
    calls, run = played(HostsUpdatedInterrupt(skip), 7)
    assert run(calls.state) == 7
    sync = [] if skip else ["state.sync"]
    assert names(calls) == ["state.sync", "func", "reset", "state.on_reset", *sync, "func"]


def test_complete_states_are_synchronized_with_members_that_need_them():
    calls, run = played(HostsUpdatedInterrupt(True), HostsUpdatedInterrupt(True), 7)
    messages, behind = [], [False, True]

    def reset():
        messages.append(sync_state.in_sync)
        sync_state.peers_in_sync = behind.pop(0)  # reported by the launcher

    calls.reset.side_effect = reset
    assert run(calls.state) == 7
    again = ["reset", "state.on_reset"]
    assert names(calls) == ["state.sync", "func", *again, "state.sync", "func", *again, "func"]
    assert messages == [True, True]


def test_other_errors_propagate():
    calls, run = played(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        run(calls.state)
    assert calls.state not in notification_manager._listeners
    calls, run = played(HorovodInternalError("lost"))
    calls.reset.side_effect = ValueError("host a, local rank 1: the slot is gone")
    with pytest.raises(ValueError, match="the slot is gone"):
        run(calls.state)


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("Open MPI", ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1")),
        ("jsrun", ("JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE=2", "JSM_NAMESPACE_LOCAL_RANK=1", "LSB_JOBID=7")),
        ("torchrun", ("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=x")),
        ("MPICH", ("PMI_RANK=1", "PMI_SIZE=2")),
    ],
)
def test_survivors_of_another_launcher_get_an_explanation(monkeypatch, launcher, variables):
    """Another launcher started the ranks, and lets one live when others have failed."""
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        monkeypatch.delenv(name)
    for variable in variables:
        monkeypatch.setenv(*variable.split("="))
    calls, run = played(HorovodInternalError("rank 0 was lost"))
    calls.reset.side_effect = TimeoutError("rank 0 has not come")
    with pytest.raises(ValueError, match=r"horovodrun --min-np N only: ") as caught:
        run(calls.state)
    assert str(caught.value) == (
        f"hvd.elastic.run goes on after a failure in jobs of horovodrun --min-np N only: {launcher} has started this "
        "one, and no process of it can be left behind or started later (rank 0 has not come)"
    )


def test_early_notifications_are_not_lost():
    removed = 1.0, HostUpdateResult.removed
    calls, run = played(HostsUpdatedInterrupt(True), 7)
    notification_manager.begin_epoch()
    notification_manager.handle_hosts_updated(*removed)  # in the first init
    added = 2.0, HostUpdateResult.added

    def reset():
        notification_manager.begin_epoch()
        notification_manager.handle_hosts_updated(*added)  # in the second init

    calls.reset.side_effect = reset
    run(calls.state)
    notified = [call for call in calls.mock_calls if call[0] in {"state.on_hosts_updated", "state.on_reset"}]
    assert notified == [
        mock.call.state.on_hosts_updated(*removed),
        mock.call.state.on_hosts_updated(*added),
        mock.call.state.on_reset(),  # clears them
        mock.call.state.on_hosts_updated(*added),
    ]
    notification_manager.begin_epoch()


class Kept(Keeping):
    """A state of a job of one rank. ``calls``: the calls made; ``fails``: the numbers of failing ``agree`` calls."""

    def __init__(self, *fails):
        super().__init__(lambda obj, **_: obj, lambda: 0)
        self.step, self.rate, self.saved = 0, 1.0, (0, 1.0)
        self.calls, self.fails, self.agreed = [], fails, 0
        self.register_reset_callbacks([self.adapt])

    def adapt(self):
        self.calls.append("adapt")
        self.rate = 0.5

    def before_step(self, error):
        return str(error) == "gradient"

    def standing(self, whole):
        return Standing(self.step, whole, 1, new=False)

    def agree(self, standing):
        self.agreed += 1
        self.calls.append("agree")
        if self.agreed in self.fails:
            raise HorovodInternalError("one more is lost")
        return [standing]

    def take(self, root):
        self.calls.append("take")

    def adopted(self, root):
        pass

    def save(self):
        self.saved = self.step, self.rate

    def restore(self):
        self.calls.append("restore")
        self.step, self.rate = self.saved


def behind():
    """Return the members of the next epoch."""
    sync_state.members = (*sync_state.members, 1)


def trained(state, error):
    """Return the step and the rate from which its function continued."""
    starts = []

    def train(state):
        starts.append((state.step, state.rate))
        while state.step < 9:
            if state.step == 5 and len(starts) == 1:
                raise HorovodInternalError(error)
            state.step += 1

    run_fn(train, behind)(state)
    return starts[1:]


def test_a_failure_during_sync_loses_nothing():
    state = Kept(2)
    assert trained(state, "gradient") == [(5, 0.5)]
    assert state.calls == ["agree", "take", "agree", "agree", "adapt", "take"]
    state = Kept(3)
    state.adapt = mock.Mock(side_effect=[HorovodInternalError("one more is lost"), HorovodInternalError("two"), None])
    state._reset_callbacks = [state.adapt]
    assert trained(state, "gradient") == [(5, 1.0)]
    assert "restore" not in state.calls


def test_a_repeated_failure_without_lost_ranks_is_raised():
    calls, run = played(*[HorovodInternalError(f"shapes differ {number}") for number in range(5)])
    with pytest.raises(
        RuntimeError, match=r"^train, .* has failed 3 times .* the program came no further: .* 2$"
    ) as no:
        run(calls.state)
    assert (no.value.__cause__, no.value.__context__) == (None, None), "it does not end because of others"
    assert calls.func.call_count == 3
    # Not if other ranks are members, ranks were lost, or it has made progress.
    errors = [HorovodInternalError("lost")] * 6
    calls, run = played(*errors, 7)
    calls.reset.side_effect = behind
    assert run(calls.state) == 7
    calls, _ = played(*errors, 7)
    lost = iter([0, 0, 1, 0, 0, 1, 0])
    assert run_fn(calls.func, calls.reset, lambda: next(lost))(calls.state) == 7
    state = Kept()
    steps = []

    def fails(state, commits=2):
        for _ in range(commits):
            state.check_host_updates()
        steps.append(1)
        if len(steps) < 6:
            raise HorovodInternalError("metric")

    run_fn(fails, lambda: None)(state)
    assert len(steps) == 6
    # A loop that repeats its last step and commits makes no progress.
    steps.clear()
    with pytest.raises(RuntimeError, match="has failed 3 times"):
        run_fn(fails, lambda: None)(Kept(), commits=1)
