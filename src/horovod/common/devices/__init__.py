"""Detection of this host's GPUs and their libraries without initializing CUDA, so that the program may still fork.

Missing hardware or libraries raise no errors; the result is then empty, with a reason. NCCL is not loaded into this
process, because frameworks would get that copy later.

- ``nvml`` queries NVIDIA's management library.
- ``libraries`` finds CUDA's driver, NCCL and NVTX; ``versions`` determines their versions.
- ``affinity`` finds CPUs and network cards near a GPU (pure except for reading /sys).
- ``visible`` assigns GPUs to workers (pure).
- ``operations`` reads which operations use NCCL (pure).
"""
