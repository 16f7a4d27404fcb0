"""Pickling of objects."""

import pickle

from horovod.common.contract.pickling import dumps


def test_pickled_code_keeps_its_file_name():
    """Tracebacks on other ranks need it to show the user's lines."""
    names = {"__name__": "__main__"}
    text = "def outer():\n    def inner():\n        pass\n    return inner\n"
    exec(compile(text, "/elsewhere/train.py", "exec"), names)
    outer = pickle.loads(dumps(names["outer"]))
    assert outer is not names["outer"]
    assert outer.__code__.co_filename == "/elsewhere/train.py"
    assert outer().__code__.co_filename == "/elsewhere/train.py"
