"""Registration of the kernels with TensorFlow."""

from tensorflow.python.framework import kernels, op_def_registry

import horovod.tensorflow  # noqa: F401 (registers them)


def test_gpu_kernels_take_arguments_in_host_memory():
    registered = {(k.op, k.device_type): k for k in kernels.get_all_registered_kernels().kernel if "Horovod" in k.op}
    ops = {op for op, _ in registered}
    assert {"HorovodAllreduce", "HorovodGroupedAllgather", "HorovodAlltoall", "HorovodJoin", "HorovodSize"} <= ops
    for op in ops:
        definition = op_def_registry.get(op)
        arguments = {argument.name for argument in (*definition.input_arg, *definition.output_arg)}
        assert set(registered[op, "GPU"].host_memory_arg) == arguments, op
        assert not registered[op, "CPU"].host_memory_arg
