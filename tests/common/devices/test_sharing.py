"""What is said of ranks that use one GPU."""

from horovod.common.devices.sharing import Use, shared, warnings

ALONE = [Use(0, "a", "GPU-1"), Use(1, "a", "GPU-2"), Use(2, "b", "GPU-1"), Use(3, "b", ""), Use(4, "b", "")]


def test_a_gpu_for_each_is_nothing_to_speak_of():
    """The same UUID on another host would be another GPU (in virtual machines); ranks without one share none."""
    assert shared(ALONE) == {}
    assert warnings(ALONE) == []


def test_ranks_that_share_are_named():
    uses = [Use(0, "a", "GPU-1"), Use(2, "a", "GPU-1"), Use(1, "a", "GPU-1")]
    (unknown,) = warnings(uses)
    assert unknown.startswith("ranks 0, 1 and 2 on host a use one GPU (GPU-1): they take turns on it, and NCCL")
    (unmeant,) = warnings(uses, {"a": 4})
    assert unmeant == (
        "ranks 0, 1 and 2 on host a use one GPU (GPU-1), though a has 4: call torch.cuda.set_device(hvd.local_rank()) "
        "right after hvd.init(), or start with `horovodrun --gpus-per-worker 1`"
    )
    (unmeant,) = warnings([*uses, Use(3, "b", "GPU-2"), Use(4, "a", "")], {"a": 2})
    assert "though a has 2" in unmeant
    assert (
        "If that is not meant, call torch.cuda.set_device(hvd.local_rank()) right after hvd.init(), or start" in unknown
    )
    assert unknown.endswith("`horovodrun --gpus-per-worker 1`")
    (scarce,) = warnings(uses, {"a": 1})
    assert scarce.endswith("is not used between them; start as many ranks as there are GPUs")
    assert "since a has no more than 1: they take turns on it" in scarce
    two = [*uses, Use(3, "a", "GPU-2"), Use(4, "a", "GPU-2"), Use(5, "b", "GPU-9"), Use(6, "b", "GPU-9")]
    on_a, on_b = warnings(two, {"a": 2})
    assert "and so do the ranks of 1 more, since a has no more than 2" in on_a
    assert on_b.startswith("ranks 5 and 6 on host b")
