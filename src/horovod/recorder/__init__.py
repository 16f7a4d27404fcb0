"""Reads the files of flight recorders.

After ``hvd.dump()``, SIGUSR2, or a failure of the job, each rank writes its most recent operations to the file
recorder.rankN.jsonl. See docs/hangs.md.
"""
