"""Jobs whose workers are processes started by another system, such as Ray actors.

The launcher is a Python program called the driver. It starts no processes but calls functions in the workers. It runs
the job's store, distributes the key, and runs elastic jobs (`workers`). If a worker ends, its connection breaks, so the
driver notices immediately (`liveness`). A worker joins the job by setting the variables that it receives
(`assignment`). Then `hvd.init()` finds the other ranks in the same way as with horovodrun. `assignment` also assigns
ranks.
"""
