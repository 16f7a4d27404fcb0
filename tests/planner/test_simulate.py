"""Properties of simulated steps: one worker, monotonicity, symmetry, overlap, fusion, stragglers."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod import _core
from horovod.planner import network, profile
from horovod.planner.network import Layout
from horovod.planner.simulate import Settings, expected_slowest, simulate

ALGORITHMS = ("ring", "hierarchical", "tree", "parameter-server", "auto")
FLOAT32 = 7
NET = network.assumed("gpu", 25e9 / 8)
sizes = st.lists(st.integers(1, 1 << 22), min_size=1, max_size=12)
bandwidths = st.floats(1e7, 1e11)
algorithms = st.sampled_from(ALGORITHMS)


def make(elements: list[int], backward: float = 0.2, device: str = "gpu", **other: object) -> profile.Profile:
    """Return a profile whose gradients become ready at equal intervals."""
    count = len(elements)
    gradients = tuple(
        profile.Gradient(f"g{i}", n, "float32", backward * (i + 1) / count) for i, n in enumerate(elements)
    )
    times = profile.Times(0.0, backward / 2, backward, 0.01)
    base = profile.Profile(format=1, name="made", device=device, batch=32, seconds=times, gradients=gradients)
    return msgspec.structs.replace(base, **other)


def seconds(p: profile.Profile, layout: Layout, net: network.Network, algorithm: str, **other: object) -> float:
    chosen = replace(Settings(algorithm=algorithm, fusion_threshold=1 << 40), **other)  # type: ignore[arg-type]
    return simulate(p, layout, net, chosen).seconds


@given(sizes, algorithms, st.sampled_from(["cpu", "gpu"]))
@settings(max_examples=20, deadline=None)
def test_one_worker_takes_the_measured_step(elements: list[int], algorithm: str, device: str) -> None:
    net = msgspec.structs.replace(NET, overhead=0.2)
    p = make(elements, device=device, variation=profile.Variation(0.1, 0.1))
    assert seconds(p, Layout(1), net, algorithm) == p.seconds.step


@given(sizes, algorithms, st.integers(0, 6), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_more_workers_never_make_a_step_faster(elements: list[int], algorithm: str, nodes: int, inside: int) -> None:
    p = make(elements, variation=profile.Variation(0.02, 0.01))
    here = seconds(p, Layout(1 << nodes, 1 << inside), NET, algorithm)
    assert seconds(p, Layout(2 << nodes, 1 << inside), NET, algorithm) >= here
    assert seconds(p, Layout((1 << nodes) + 1, 1 << inside), NET, algorithm) >= here


@given(sizes, algorithms, bandwidths, st.floats(1, 100), st.integers(1, 64), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_more_bandwidth_never_makes_a_step_slower(
    elements: list[int], algorithm: str, bandwidth: float, factor: float, nodes: int, inside: int
) -> None:
    slow = msgspec.structs.replace(NET, bandwidth=bandwidth)
    fast = msgspec.structs.replace(slow, bandwidth=bandwidth * factor)
    layout = Layout(nodes, inside)
    assert seconds(make(elements), layout, fast, algorithm) <= seconds(make(elements), layout, slow, algorithm) + 1e-12


@given(sizes, st.sampled_from(["cpu", "gpu"]), bandwidths, st.floats(1, 100), st.integers(1, 16), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_the_engines_choice_is_never_slower_with_more_bandwidth(
    elements: list[int], device: str, bandwidth: float, factor: float, nodes: int, inside: int
) -> None:
    slow = msgspec.structs.replace(NET, bandwidth=bandwidth)
    fast = msgspec.structs.replace(slow, bandwidth=bandwidth * factor)
    p, layout = make(elements, device=device), Layout(nodes, inside)
    assert seconds(p, layout, fast, "auto") <= seconds(p, layout, slow, "auto") + 1e-12


def test_ring_costs_match_the_engine() -> None:
    measured, name = network.Allreduce("ring", Layout(8), NET).predict(1 << 20)
    model = {"alpha": NET.latency, "beta": 1 / NET.bandwidth, "gamma": 0.0}
    assert name == "ring"
    assert measured == pytest.approx(_core.predict("allreduce", "ring", 1 << 20, list(range(8)), model), rel=1e-6)


@pytest.mark.parametrize(("nodes", "inside"), [(1, 4), (4, 1), (4, 2), (6, 3)])
def test_the_planner_uses_the_engines_algorithm_for_host_memory(nodes: int, inside: int) -> None:
    node_of = [rank // inside for rank in range(nodes * inside)]
    for nbytes in (1 << 10, 1 << 24):
        _, name = network.Allreduce("auto", Layout(nodes, inside), NET, "cpu").predict(nbytes)
        assert name == _core.choose_algorithm("allreduce", FLOAT32, nbytes, node_of)


def test_communication_is_hidden_behind_backward() -> None:
    fast = msgspec.structs.replace(NET, bandwidth=1e12, latency=0.0, intra_latency=0.0)
    p = make([1 << 20] * 10)
    step = simulate(p, Layout(8), fast, Settings())
    assert step.seconds == pytest.approx(p.seconds.step, rel=1e-3)
    assert step.hidden > 0


def test_fusion_helps_many_small_gradients() -> None:
    p = make([1000] * 300)
    unfused = simulate(p, Layout(64), NET, Settings(algorithm="ring", fusion_threshold=0))
    fused = simulate(p, Layout(64), NET, Settings(algorithm="ring"))
    assert unfused.operations == 300
    assert fused.operations < 150
    assert fused.seconds < 0.7 * unfused.seconds


def test_different_dtypes_are_not_fused_and_the_threshold_holds() -> None:
    assert _core.fuse([4, 4, 4], [7, 6, 7], 100) == [[0, 2], [1]]
    assert _core.fuse([60, 60, 30], [7, 7, 7], 100) == [[0, 2], [1]]
    assert _core.fuse([4, 4], [7, 7], 0) == [[0], [1]]
    with pytest.raises(ValueError, match="dtype must be 0 to 10, got 99"):
        _core.fuse([4], [99], 0)
    with pytest.raises(ValueError, match=r"dtypes must have one value for each of the .* got 0"):
        _core.fuse([4], [], 0)


@pytest.mark.parametrize(("compression", "factor"), [("fp16", 1 / 2), ("bf16", 1 / 2), ("int8", 65 / 256)])
def test_compression_shrinks_float32_on_the_wire(compression: str, factor: float) -> None:
    p = make([256 * 1000] * 4)
    half = msgspec.structs.replace(p.gradients[3], dtype="float16")
    p = msgspec.structs.replace(p, gradients=(*p.gradients[:3], half))
    step = simulate(p, Layout(4), NET, Settings(compression=compression))
    assert step.nbytes == 3 * 256 * 4000 * factor + 256 * 2000


def test_local_steps_divide_the_communication() -> None:
    p = make([1 << 22] * 10)
    every = simulate(p, Layout(8), NET, Settings(local_steps=2))
    eighth = simulate(p, Layout(8), NET, Settings(local_steps=16))
    assert every.exposed == pytest.approx(8 * eighth.exposed)


def test_the_slowest_of_many_is_late() -> None:
    assert expected_slowest(0.1, 1) == 0
    assert expected_slowest(0.1, 2) == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.05)
    assert expected_slowest(0.1, 100) == pytest.approx(0.25, rel=0.02)
    p = make([1000], variation=profile.Variation(0.1, 0.0))
    step = simulate(p, Layout(100), NET, Settings())
    assert step.stragglers == pytest.approx(0.25 * p.seconds.step, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"algorithm": "butterfly"}, "`algorithm` must be one of auto"), ({"local_steps": 0}, "`local_steps` must be")],
)
def test_invalid_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**change)  # type: ignore[arg-type]


def test_host_memory_steps_are_fused_up_to_the_threshold() -> None:
    """As the engine's schedules do: what shares an operation waits for the last of its gradients."""
    p = make([1 << 18] * 8, device="cpu")
    net = msgspec.structs.replace(network.assumed("cpu", 1e8), gamma=0.0)
    together = simulate(p, Layout(2), net, Settings())
    assert together.operations == 1
    assert together.exposed == pytest.approx(together.communication, rel=0.01)
    apart = simulate(p, Layout(2), net, Settings(fusion_threshold=1 << 20))
    assert apart.operations == 8
    assert apart.exposed < 0.5 * together.exposed
