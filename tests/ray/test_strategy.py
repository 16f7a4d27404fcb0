"""Resources requested from Ray, and errors for a cluster that is too small. Pure."""

import pytest

pytest.importorskip("ray")

from horovod.ray import strategy


def test_colocated_workers_share_a_bundle_on_each_node():
    plan = strategy.colocated(2, 3, 2, 0)
    assert list(plan.bundles) == [{"CPU": 6.0}, {"CPU": 6.0}]
    assert plan.strategy == "STRICT_SPREAD"
    assert list(plan.places) == [0, 0, 0, 1, 1, 1]


def test_loose_workers_have_a_bundle_each():
    plan = strategy.loose(3, 1, 2, "SPREAD")
    assert list(plan.bundles) == [{"CPU": 1.0, "GPU": 2.0}] * 3
    assert (plan.strategy, list(plan.places)) == ("SPREAD", [0, 1, 2])


def test_an_existing_group_takes_as_many_as_its_bundles_hold():
    plan = strategy.within([{}, {"CPU": 1.0}, {"CPU": 2.5}], 3, 1, 0)
    assert list(plan.places) == [-1, -1, -1]


def test_too_small_groups_are_refused_with_their_size():
    with pytest.raises(ValueError, match=r"3 workers of 1 CPU each .* \(1 CPUs and 0 GPUs, 1 CPUs and 0 GPUs\) .* 2;"):
        strategy.within([{"CPU": 1.0}, {"CPU": 1.0}], 3, 1, 0)


@pytest.mark.parametrize(
    ("has", "cpus", "gpus", "fit"),
    [
        ({"CPU": 4.0}, 1, 0, 4),
        ({"CPU": 4.0}, 3, 0, 1),
        ({"CPU": 4.0}, 1, 1, 0),
        ({"CPU": 4.0, "GPU": 2.0}, 1, 1, 2),
        ({"CPU": 1.0, "GPU": 8.0}, 0, 2, 4),
        ({}, 1, 0, 0),
    ],
)
def test_fitting(has, cpus, gpus, fit):
    assert strategy.fitting(has, cpus, gpus) == fit


NODES = [{"CPU": 2.0}, {"CPU": 1.0}]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (strategy.loose(3, 1, 0, "PACK"), ""),
        (strategy.loose(4, 1, 0, "PACK"), "room for: 3, of 4"),
        (strategy.loose(3, 1, 0, "STRICT_PACK"), "room for: 2, of 3"),
        (strategy.loose(2, 1, 0, "STRICT_SPREAD"), ""),
        (strategy.loose(1, 1, 1, "PACK"), "room for: 0, of 1"),
        (strategy.colocated(2, 1, 1, 0), ""),
        (strategy.colocated(2, 2, 1, 0), "nodes that fit: 1, of 2"),
    ],
)
def test_missing_resources(plan, message):
    text = strategy.lacking(plan, NODES)
    assert (message in text) if message else text == ""
    if message:
        assert "its 2 nodes have 2 CPUs and 0 GPUs; 1 CPUs and 0 GPUs" in text


def test_workers_see_all_gpus_of_a_host_and_use_their_local_rank():
    gpus, hosts = [["3"], ["1"], ["0"]], ["a", "a", "b"]
    seen = [strategy.visible(gpus, hosts, rank).get("CUDA_VISIBLE_DEVICES") for rank in range(3)]
    assert seen == ["3,1", "3,1", "0"]
