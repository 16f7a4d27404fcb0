"""What flight recorders have written (by ``hvd.dump()``, SIGUSR2, the end of a job by an error).

Each rank writes a file recorder.rankN.jsonl of its last operations; see docs/hangs.md.
"""
