"""Search for inputs that break a target of fuzz/targets.py, guided by coverage, with atheris (libFuzzer for Python).

python -m fuzz.fuzz TARGET CORPUS_DIRECTORY [libFuzzer's options]
"""

import sys

import atheris

with atheris.instrument_imports(include=["horovod", "fuzz"]):
    from fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if target is None:
        raise SystemExit(f"usage: python -m fuzz.fuzz TARGET CORPUS_DIRECTORY [OPTIONS]; targets: {', '.join(TARGETS)}")
    del sys.argv[1]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
