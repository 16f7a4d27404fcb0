"""Parts of `horovod.run`: the pickled function, its workers, its results and errors."""
