"""Detection of this host's GPUs and their libraries without initializing CUDA, so that the program may still fork.

Missing hardware or libraries raise no errors: the result is then empty and gives a reason. NCCL is not loaded into this
process, because frameworks imported later would use that copy instead of their own.

- ``nvml`` queries NVIDIA's management library.
- ``libraries`` finds CUDA's driver, NCCL and NVTX; ``versions`` determines their versions.
- ``affinity`` finds CPUs and network cards near a GPU.
- ``visible`` assigns GPUs to workers.
- ``operations`` reads from the settings which operations use NCCL.
"""
