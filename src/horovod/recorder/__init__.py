"""Reader of the files that flight recorders write.

After ``hvd.dump()``, SIGUSR2, or a failure of the job, each rank writes its last operations to a file
recorder.rankN.jsonl. See docs/hangs.md.
"""
