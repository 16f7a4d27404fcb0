"""Parts of `horovod.run`: the pickled function, the workers that call it, and its results and errors."""
