"""Jobs whose workers are *residents*: processes that somebody else has started and looks after (an actor of Ray, a
worker of Ray Train), and in which we may call functions.

The launcher is a Python program here, the *driver*, and starts no process. It has the job's store, hands out the key
(``residence``), and hears of each worker's end at once by a connection that lasts as long as the worker (``lifeline``).
A worker takes its seat (``seat``): from then on ``hvd.init()`` in it finds the others, as in a process that horovodrun
has started. Who gets which rank: ``placing``. Where workers come and go: ``course``.
"""
