"""Jobs whose workers are processes started and managed by another system, such as actors of Ray.

The launcher, a Python program called the driver, starts no process itself; it only calls functions in the workers. It
runs the job's store, distributes the key (`workers`), and notices at once when a worker ends, because the worker's
connection breaks (`liveness`). A worker joins the job by setting the variables that it gets (`assignment`). From then
on, `hvd.init()` finds the other ranks as in a process started by horovodrun. `assignment` also assigns ranks, and
`elastic_job` runs elastic jobs.
"""
