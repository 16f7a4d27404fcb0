"""The launcher's messages about limits of an elastic job, in terms of its flags."""

from dataclasses import replace

from horovod.runner.base import arguments
from horovod.runner.elastic.actions import Kill
from tests.runner.elastic.world import World, actions_of, started


def sentences(called):
    """Return the messages of jobs that end by each of their limits."""
    few = started(World(least=3, names=called), a=2, b=2)
    few.exit(0)
    few.back(1, 2, 3)
    few.form()
    few.exit(3)
    few.back(1, 2)
    late = started(World(least=3, timeout=50.0, cooldown=(60, 60), names=called), a=2, b=2)
    late.exit(2)
    late.exit(3)
    late.back(0, 1)
    late.wait(60)
    often = started(World(resets=0, names=called), a=4)
    often.exit(3)
    often.back(0, 1, 2)
    silent = World(timeout=50.0, names=called)
    silent.discover(a=4)
    silent.ready(0, 1, 2)
    silent.wait(60)
    worlds = few, late, often, silent
    assert [world.end.success for world in worlds[:3]] == [False] * 3
    sentences = [*(text for world in worlds for text in world.messages), *(world.end.text for world in worlds[:3])]
    return "\n".join([*sentences, *(kill.why for kill in actions_of(silent, Kill))])


def test_sentences_of_a_job():
    text = sentences(arguments.FLAGS)
    for flag in ("--min-np", "--elastic-timeout", "--reset-limit", "--blacklist-cooldown-range"):
        assert flag in text
    for called in (arguments.HOROVOD_RUN, arguments.ARGUMENTS):
        text = sentences(called)
        for name in (called.least, called.timeout, called.resets, called.cooldown):
            assert name in text
        assert "--" not in text
    text = sentences(replace(arguments.ARGUMENTS, cooldown=""))
    assert "get no new ones: 2 are there" in text
    assert "()" not in text
