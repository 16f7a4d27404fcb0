"""Reader of the files that flight recorders write.

Each rank writes its last operations to a file recorder.rankN.jsonl after ``hvd.dump()``, SIGUSR2, or a failure of the
job; see docs/hangs.md.
"""
