"""Random programs of collectives, loops, branches, functions and derivatives, which ranks write in different orders.

A program is drawn from a seed as a list of nodes, each of which uses the values of some earlier nodes. `run`
executes it for a rank; with `mean_of_rows` in place of an allreduce it computes the expected results.
"""

import random
from dataclasses import dataclass, field

import jax
from jax import numpy as jnp


@dataclass
class Node:
    """One value of a program. All kinds except "call" contain a program of their own."""

    kind: str
    name: str
    uses: list[int]
    body: list["Node"] = field(default_factory=list)


def draw(seed, size=6):
    """Return the nodes of a random program; at least one is not a call, often the last."""
    choose = random.Random(seed)
    nodes = _nodes(choose, size, 2, "n", AROUND)
    nodes[choose.choice((-1, -1, choose.randrange(size)))] = _inner(choose, 2, "n", size, [], AROUND)
    return nodes


def _nodes(choose, count, depth, name, kinds):
    nodes = []
    for i in range(count):
        uses = sorted(choose.sample(range(i), min(i, choose.choice((0, 0, 1, 2)))))
        if depth == 0 or choose.random() < 0.6:
            nodes.append(Node(choose.choice(list(CALLS)), f"{name}.{i}", uses))
        else:
            nodes.append(_inner(choose, depth, name, i, uses, kinds))
    return nodes


def _inner(choose, depth, name, i, uses, kinds):
    kind = choose.choice(list(kinds))
    if kind.startswith("grad"):
        kinds = [one for one in kinds if one not in WITHOUT_GRADIENT]
    body = _nodes(choose, choose.choice((1, 1, 2, 3)), depth - 1, f"{name}.{i}", kinds)
    return Node(kind, f"{name}.{i}", uses, body)


def run(nodes, x, two, reduce, seed):
    """Return the values of all nodes.

    Args:
        nodes: what `draw` returned.
        x: the input, an array of floats.
        two: the number 2, traced, so that XLA does not know it.
        reduce: called with an array and a name.
        seed: for the order in which independent calls are written.
    """
    values = [None] * len(nodes)
    for i in _written(nodes, seed):
        node = nodes[i]
        argument = jnp.tanh(x + i / 8 + sum(values[j] for j in node.uses))
        if node.body:

            def body(y, node=node):
                inner = run(node.body, y, two, reduce, f"{seed}.{node.name}")
                return jnp.tanh(sum(inner))

            values[i] = AROUND[node.kind](body, argument, two, lambda y, node=node: reduce(y, f"{node.name}.condition"))
        else:
            values[i] = CALLS[node.kind](lambda y, node=node: reduce(y, node.name), argument)
    return values


def _written(nodes, seed):
    """Return an order that puts each node after those it uses; nodes other than calls keep theirs."""
    choose, rest, order = random.Random(seed), list(range(len(nodes))), []
    while rest:
        inner = [i for i in rest if nodes[i].body][:1]
        ready = [i for i in rest if all(j in order for j in nodes[i].uses) and (not nodes[i].body or i in inner)]
        order.append(choose.choice(ready))
        rest.remove(order[-1])
    return order


def mean_of_rows(x, name):
    """Compute the expected average: rows are ranks."""
    return jnp.broadcast_to(x.mean(0), x.shape)


CALLS = {
    "call": lambda call, x: call(x),
    "again": lambda call, x: call(x) + call(x + 1),
    "vmap": lambda call, x: jax.vmap(call)(jnp.stack([x, x / 2])).sum(0),
    "grad": lambda call, x: jax.grad(lambda y: (call(y) ** 2 * y).sum())(x),
}

WITHOUT_GRADIENT = ("fori with an unknown end", "while", "call in the condition", "call in the condition alone")

AROUND = {
    "fori": lambda f, x, two, call: jax.lax.fori_loop(0, 2, lambda i, y: f(y), x),
    "once": lambda f, x, two, call: jax.lax.fori_loop(0, 1, lambda i, y: f(y), x),
    "fori with an unknown end": lambda f, x, two, call: jax.lax.fori_loop(0, two, lambda i, y: f(y), x),
    "scan": lambda f, x, two, call: jax.lax.scan(lambda y, _: (f(y), y), x, None, length=3)[1].sum(0),
    "unrolled": lambda f, x, two, call: jax.lax.scan(lambda y, _: (f(y), None), x, None, length=3, unroll=2)[0],
    "while": lambda f, x, two, call: jax.lax.while_loop(lambda s: s[0] < two, lambda s: (s[0] + 1, f(s[1])), (0, x))[1],
    "call in the condition": lambda f, x, two, call: jax.lax.while_loop(
        lambda s: (s[0] < 2) & (call(s[1]).max() < 9), lambda s: (s[0] + 1, f(s[1])), (0, x)
    )[1],
    "call in the condition alone": lambda f, x, two, call: f(
        jax.lax.while_loop(
            lambda s: (s[0] < 2) & (call(s[1]).max() < 9), lambda s: (s[0] + 1, s[1] / 2), (0, jnp.tanh(x))
        )[1]
    ),
    "cond": lambda f, x, two, call: jax.lax.cond(two > 1, f, lambda y: y, x),
    "cond, not taken": lambda f, x, two, call: jax.lax.cond(two > 2, f, lambda y: y, x),
    "known cond": lambda f, x, two, call: jax.lax.cond(True, f, lambda y: y, x),
    "switch": lambda f, x, two, call: jax.lax.switch(two - 1, [lambda y: y, f, lambda y: call(y) + f(y)], x),
    "map": lambda f, x, two, call: jax.lax.map(f, jnp.stack([x, x / 2])).sum(0),
    "jit": lambda f, x, two, call: jax.jit(f)(x),
    "jit twice": lambda f, x, two, call: (lambda g: g(x) + g(x / 2))(jax.jit(f)),
    "jit in jit": lambda f, x, two, call: jax.jit(lambda y: jax.jit(f)(y) / 2)(x),
    "checkpoint": lambda f, x, two, call: jax.checkpoint(f)(x),
    "grad": lambda f, x, two, call: jax.grad(lambda y: jnp.sin(f(y)).sum())(x),
    "grad of a checkpoint": lambda f, x, two, call: jax.grad(lambda y: jax.checkpoint(f)(y).sum())(x),
    "grad of a scan": lambda f, x, two, call: jax.grad(
        lambda z: jax.lax.scan(lambda y, _: (f(y), None), z, None, length=2)[0].sum()
    )(x),
    "vmap of a scan": lambda f, x, two, call: jax.vmap(
        lambda z: jax.lax.scan(lambda y, _: (f(y), None), z, None, length=2)[0]
    )(jnp.stack([x, x / 2])).sum(0),
}
