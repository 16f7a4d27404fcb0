"""The order of a program's collectives, read from the compiled program without a job or execution."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402
from jax.interpreters import mlir  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

from horovod._core import KIND_ALLREDUCE  # noqa: E402
from horovod._jax import calls, foreign  # noqa: E402
from horovod._jax.ordering import order  # noqa: E402
from horovod.common.frontends import JAX  # noqa: E402
from horovod.common.ops import Sum  # noqa: E402
from tests.jax import hlo, programs  # noqa: E402


def reduced(x, name="", steps=""):
    call = calls.Call(KIND_ALLREDUCE, (name,), ("",), Sum, 0, JAX.number, steps=steps)
    return calls.run(call, [x])[0]


def text_of(program, *args):
    return jax.jit(program).lower(*(args or (jnp.ones(3),))).compile().as_text()


def order_of(program, *args):
    return hlo.order(text_of(program, *args))


def loop(x, name):
    return jax.lax.fori_loop(0, 3, lambda i, y: reduced(y, name), x)


def branch(x, name, steps=""):
    return jax.lax.cond(x[0] > 0, lambda y: reduced(y, name, steps), lambda y: y, x)


@pytest.mark.parametrize("kind", programs.AROUND)
def test_event_kinds_at_the_end_are_ordered(kind):
    """They are written after the calls and before them."""

    def program(first):
        def write(x, two):
            def of(name):
                return programs.AROUND[kind](
                    lambda y: jnp.sin(reduced(y, name)), x, two, lambda y: reduced(y, f"{name}.condition")
                )

            def chain():
                return reduced(reduced(x, "first"), "second")

            before = chain() if first else None
            both = of("one"), of("other")
            return before if first else chain(), *both

        return write

    behind, before = (order_of(program(first), jnp.ones(3), 2) for first in (True, False))
    assert behind == before
    assert "first" in behind[0]
    assert "second" in behind[1]


def test_calls_merge_by_dependency_depth():
    def program(x):
        a = reduced(x, "a")
        b = reduced(reduced(a, "b"), "c")
        return b, reduced(x + 1, "d"), reduced(x + a, "e"), reduced(b + reduced(x, "f"), "g")

    assert order_of(program) == [("a", "d", "f"), ("b", "e"), ("c",), ("g",)]


def test_results_go_to_their_callers():
    """Merged calls of different shapes and dtypes: every use gets the result of its own argument."""

    def program(x):
        return reduced(x, "a"), reduced(jnp.ones((2, 5), jnp.int32), "b"), reduced(jnp.float16(1), "c")

    lowered = jax.jit(program).lower(jnp.ones(3))
    assert [(one.shape, one.dtype) for one in jax.tree.leaves(lowered.out_info)] == [
        ((3,), np.float32),
        ((2, 5), np.int32),
        ((), np.float16),
    ]
    lowered.compile()  # compiling checks types


def test_operations_with_one_name_run_in_order():
    def program(x):
        return reduced(x, "same"), reduced(x, "same"), reduced(x, "same"), reduced(x), reduced(x), reduced(x, "a")

    assert order_of(program) == [("", "", "a", "same"), ("same",), ("same",)]


def test_loops_follow_all_independent_calls():
    def program(x):
        one = loop(x, "one")
        behind = reduced(one, "behind one")
        two = loop(x, "two")
        a = reduced(reduced(x, "a"), "b")
        return behind, two, a, reduced(two, "behind two"), reduced(one + a, "behind both")

    first = [[[], [("one",)]], ("behind both", "behind one")]
    assert order_of(program) == [("a",), ("b",), *first, [[], [("two",)]], ("behind two",)]


def test_programs_without_collectives_are_unchanged():
    def program(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: y * 2, x)

    assert foreign.TARGET not in jax.jit(program).lower(jnp.ones(3)).as_text()
    assert order_of(program) == []


def test_memory_is_reused_except_that_of_arguments():
    lowered = jax.jit(lambda x: (reduced(x, "a"), reduced(x * 2, "b"))).lower(jnp.ones(3)).as_text()
    assert "output_tuple_indices = [1]" in lowered
    assert "output_tuple_indices = [0]" not in lowered


COUNT = ("step",)


def test_steps_are_counted_in_front_of_the_outermost_branch():
    def nested(x):
        return jax.lax.cond(x[0] > 0, lambda y: branch(y + 1, "a", "step"), lambda y: y, x)

    assert order_of(nested) == [COUNT, [[], [[[], [("a",)]]]]]
    assert order_of(lambda x: branch(x, "a")) == [[[], [("a",)]]]
    assert order_of(lambda x: reduced(x, "a", "step")) == [("a",)]
    assert order_of(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: branch(y, "a", "step"), x)) == [
        [[], [COUNT, [[], [("a",)]]]]
    ]


def test_steps_are_compared_within_branches_and_the_functions_they_use():
    def program(x):
        inner = jax.jit(jax.jit(lambda y: reduced(y, "in", "step")))
        return jax.lax.cond(x[0] > 0, lambda y: inner(y) + loop(y, "loop"), lambda y: y, x), reduced(x, "out", "other")

    lines = [line for line in text_of(program).splitlines() if "names = " in line]
    compared = {line.split('names = "')[1].split('"')[0]: 'steps = "step"' in line for line in lines}
    assert compared == {"in": True, "loop": False, "out": False, "step": False}


def test_calls_in_other_operations_are_refused():
    def program(x):
        return reduced(x[0], "a")

    lowered = jax.jit(program).lower(jnp.ones(3))
    call = next(line for line in lowered.as_text().splitlines() if foreign.TARGET in line)
    attributes = call[call.index("{") : call.rindex("}") + 1]
    results = "(tensor<f32>, tensor<i32>)"
    with mlir.make_ir_context():
        module = ir.Module.parse(f"""
            func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
              %0 = "stablehlo.map"(%x) <{{dimensions = array<i64: 0>}}> ({{
              ^bb0(%y: tensor<f32>):
                %1:2 = stablehlo.custom_call @{foreign.TARGET}(%y) {attributes} : (tensor<f32>) -> {results}
                stablehlo.return %1#0 : tensor<f32>
              }}) : (tensor<3xf32>) -> tensor<3xf32>
              return %0 : tensor<3xf32>
            }}
        """)  # fmt: skip
        with pytest.raises(NotImplementedError, match=r"a collective .* must be in a loop .*, got 'stablehlo.map'"):
            order(module)


def test_a_program_over_several_devices_is_refused():
    with mlir.make_ir_context():
        module = ir.Module.parse("module attributes {mhlo.num_partitions = 2 : i32} {}")
        with pytest.raises(NotImplementedError, match=r"must use one device, got 2 .* put the arguments on one device"):
            order(module)
