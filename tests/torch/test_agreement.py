"""Readiness flags that ranks exchange in a round: byte vectors whose maximum the engine computes."""

import pytest

from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError
from horovod.torch.reducer.agreement import MAX_BYTE, check_readiness, decode_readiness, encode_readiness, flags_of


def encode(me, flags=(1, 0), wishes=(0, 0), ranks=3, **status):
    return encode_readiness(
        ranks,
        me,
        flags,
        wishes,
        **{"at_step": False, "failed": 0, "rounds": 0, "max_rounds": 1, "steps": 0, "epoch": 0, **status},
    )


def maximum(*vectors, ranks=3):
    return decode_readiness(bytearray(map(max, zip(*vectors, strict=True))), ranks)


def test_agreement_of_all_ranks():
    local, remote = encode(0, (1, 0), rounds=2), encode(1, (0, 3), (0, 1), rounds=2, at_step=True, max_rounds=4)
    vector = bytearray(map(max, zip(local, remote, strict=True)))
    assert flags_of(vector, 3, 2) == bytearray((1, 3))
    readiness = decode_readiness(vector, 3)
    assert readiness == (False, bytearray((1, 3, 0, 1)), True, True, 0, 2, 2, 4, 0, 0, 0, 0)
    check_readiness(readiness, 0)
    both = maximum(local, remote, encode(2, rounds=2))
    assert both.all_present
    alone = maximum(encode(0, at_step=True), ranks=3)
    assert (alone.at_step, alone.at_end) == (True, False)


def test_failed_passes_are_named():
    with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on rank 7, "):
        check_readiness(maximum(encode(0), encode(1, failed=8)), 0)
    with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on rank 253, "):
        check_readiness(maximum(encode(0), encode(1, failed=254)), 0)
    for failed in (255, 256, 5000):  # more than a byte can hold
        with pytest.raises(HorovodInternalError, match=r"backward\(\) failed on another rank, "):
            check_readiness(maximum(encode(0), encode(1, failed=failed)), 0)


def test_ranks_after_different_numbers_of_rounds():
    with pytest.raises(RanksDisagreeError, match=r"before this one, 1 on some ranks and 3 on others \(times"):
        check_readiness(maximum(encode(0, rounds=2), encode(1, rounds=1), encode(2, rounds=3)), 0)
    for rounds in (0, 254, 255, 256, 1000):
        check_readiness(maximum(encode(0, rounds=rounds), encode(1, rounds=rounds)), 0)
    with pytest.raises(RanksDisagreeError, match="0 on some ranks and 254 on others"):
        check_readiness(maximum(encode(0, rounds=254), encode(1, rounds=255)), 0)
    assert maximum(encode(0, max_rounds=300)).max_rounds == MAX_BYTE


def test_ranks_in_different_steps():
    for steps in (0, 254, 255, 300, 1000):
        check_readiness(maximum(encode(0, steps=steps), encode(1, steps=steps)), steps)
    for local, remote in ((7, 8), (8, 7), (255, 254), (254, 255), (509, 511), (1020, 1019), (300, 290)):
        readiness = maximum(encode(0, steps=local), encode(1, steps=remote))
        with pytest.raises(RanksDisagreeError, match=rf"called step\(\) {local} times, another rank {remote} times"):
            check_readiness(readiness, local)
