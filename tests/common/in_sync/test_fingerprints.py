"""Comparisons and messages of check_in_sync, without ranks."""

import enum
from collections import OrderedDict

import pytest

from horovod.common.in_sync import Array, check_ignore, digest_of, fingerprints, named, report


def read(value):
    """Return the fingerprints for a frontend whose tensors are bytearrays."""
    if isinstance(value, bytearray):
        return Array("uint8", (len(value),), value, lambda: list(value), "seven" if len(value) == 7 else "")
    return value


class Counter:
    def __init__(self, count):
        self.count = count
        self.itself = self


class Resumable:
    def __init__(self, epoch):
        self.epoch = epoch
        self.lock = object()

    def state_dict(self):
        return {"last_epoch": self.epoch, "warm": OrderedDict(factor=0.5)}


class Mode(enum.Enum):
    MIN = 1


def objects(**changed):
    objects = {
        "model": {"dense.weight": bytearray(b"abc"), "dense.bias": bytearray(7)},
        "optimizer": {
            "state": {3: {"exp_avg": bytearray(b"x"), "step": 1}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
        },
        "scheduler": Resumable(5),
        "others": [None, True, "text", b"bytes", {2, 1}, Mode.MIN, len, Counter, Counter(3), 1j],
    }
    return {**objects, **changed}


def test_every_value_has_a_path():
    leaves = fingerprints(objects(), read)
    shown = {path: leaf.shown for path, leaf in leaves.items()}
    assert list(shown)[:6] == [
        "model.dense.weight",
        "model.dense.bias",
        "optimizer.state[3].exp_avg",
        "optimizer.state[3].step",
        "optimizer.param_groups[0].lr",
        "optimizer.param_groups[0].betas[0]",
    ]
    assert shown["model.dense.weight"] == "[97, 98, 99]"
    assert shown["model.dense.bias"] == "uint8 of shape (7,) (seven)"
    assert shown["scheduler.last_epoch"] == "5"
    assert shown["scheduler.warm.factor"] == "0.5"
    assert "scheduler.lock" not in shown
    assert shown["others[4]"] == "{1, 2}" or shown["others[4]"] == "{2, 1}"
    assert shown["others[6]"] == "builtins.len"
    assert shown["others[8].count"] == "3"
    ignored = fingerprints(objects(), read, ["others[8].count", "model.*", "optimizer.*"])
    assert "others[8].count" not in ignored
    assert next(iter(ignored)) == "scheduler.last_epoch"


@pytest.mark.parametrize(
    "changed",
    [
        {"scheduler": Resumable(6)},
        {"model": {"dense.weight": bytearray(b"abd"), "dense.bias": bytearray(7)}},
        {"model": {"dense.weight": bytearray(b"abc"), "dense.bias": bytearray(8)}},
        {"others": [None, 1, "text", b"bytes", {2, 1}, Mode.MIN, len, Counter, Counter(3), 1j]},
        {"others": [None, True, "text", b"bytes", {2, 3}, Mode.MIN, len, Counter, Counter(3), 1j]},
        {"others": [None, True, "text", b"bytes", {2, 1}, Mode.MIN, repr, Counter, Counter(3), 1j]},
        {"others": [None, True, "text", b"bytes", {2, 1}, Mode.MIN, len, Counter, Counter(4), 1j]},
        {"more": 1},
    ],
)
def test_the_hash_detects_each_difference(changed):
    assert digest_of(fingerprints(objects(), read)) == digest_of(fingerprints(dict(reversed(objects().items())), read))
    assert digest_of(fingerprints(objects(), read)) != digest_of(fingerprints(objects(**changed), read))


def test_incomparable_objects_are_refused_by_name():
    with pytest.raises(ValueError, match=r"parameters must be a model.*got an iterator"):
        fingerprints({"parameters": iter([1])}, read)
    with pytest.raises(ValueError, match=r"state must be a model.*got a method"):
        fingerprints({"state": Resumable(1).state_dict}, read)
    with pytest.raises(ValueError, match="an object must be given; pass a model"):
        named([], {}, str)
    for wrong in ("model.*", 3, [3]):
        with pytest.raises(ValueError, match="ignore must be a list"):
            check_ignore(wrong)


def tables(*columns):
    return [fingerprints(each, read) for each in columns]


def test_the_report_names_path_ranks_and_values():
    one, other = objects(scheduler=Resumable(6)), objects()
    text = report([0, 1, 2, 4], tables(one, other, other, other))
    assert "the ranks differ: scheduler.last_epoch is 6 on rank 0 and 5 on ranks 1-2, 4; 1 of 20 values differ" in text
    long = {"a": bytearray(b"abcdefgh"), "b": 1}
    text = report([0, 1, 2], tables(long, {"a": bytearray(b"abcdefgi"), "b": 2}, long))
    assert "a (uint8 of shape (8,)) is one on ranks 0, 2, another on rank 1; 2 of 2 values differ, also b" in text
    text = report([0, 1], tables({"b": 1}, {"a": "x", "b": 1}))
    assert "a is missing on rank 0 and 'x' on rank 1" in text
    text = report(range(9), tables(*({"a": i} for i in range(9))))
    assert "3 on rank 3, and 5 more values" in text
