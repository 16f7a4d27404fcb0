"""Reader of flight recorder files.

After ``hvd.dump()``, SIGUSR2, or a failure of the job, each rank writes its last operations to the file
recorder.rankN.jsonl. See docs/hangs.md.
"""
