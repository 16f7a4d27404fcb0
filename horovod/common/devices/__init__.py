"""Which GPUs and libraries for them this host has, found without starting CUDA: a program may fork after it has asked.

Nothing here raises because something is missing: that there is no GPU is an answer, with its reason. Nothing here loads
NCCL into the process that asks, since the first copy in a process is the one that a framework gets later.

``nvml`` asks NVIDIA's management library; ``libraries`` finds CUDA's driver, NCCL and NVTX, ``versions`` says which
version one is; ``affinity`` tells what is near a GPU (pure, but for reading /sys); ``visible`` decides who gets
which GPU (pure); ``operations`` reads who is to carry GPU tensors (pure).
"""
