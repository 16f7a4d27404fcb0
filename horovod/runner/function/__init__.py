"""`horovod.run`: the function, its workers, its results and errors."""
