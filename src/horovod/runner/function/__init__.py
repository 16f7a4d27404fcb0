"""Implementation of `horovod.run`: the serialized function, the workers that call it, and its results and errors."""
