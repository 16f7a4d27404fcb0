"""From which host another one is reached, and fallbacks if that fails."""

from horovod.runner.remote.routes import RETRY_UNTIL, Routes

HOSTS = ["a", "b", "c", "d", "e", "f", "g"]


def test_trees_of_hosts_respect_the_fanout():
    routes = Routes(HOSTS, 2)
    assert {host: routes.children(host) for host in HOSTS[:3]} == {"a": ["c", "d"], "b": ["e", "f"], "c": ["g"]}
    assert [routes.depth(host) for host in HOSTS] == [0, 0, 1, 1, 1, 1, 2]
    chain = Routes(HOSTS, 1)
    assert [chain.depth(host) for host in HOSTS] == list(range(7))


def test_hosts_unreachable_from_their_parent_are_tried_by_the_launcher():
    routes = Routes(HOSTS, 2)
    assert routes.after_failure("c", again=False, tried=10.0, now=11.0) == 11.0
    assert (routes.parent("c"), routes.children("a"), routes.depth("g")) == (None, ["d"], 1)
    assert routes.after_failure("c", again=False, tried=10.0, now=12.0) is None
    assert routes.after_failure("e", again=True, tried=10.0, now=11.0) == 11.0
    assert routes.parent("e") is None
    # After a timeout without an answer, another route would not help.
    assert routes.after_failure("d", again=True, tried=10.0, now=10.0 + RETRY_UNTIL) is None
    assert routes.parent("d") == "a"
