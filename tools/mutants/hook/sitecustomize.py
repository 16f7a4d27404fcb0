"""Python startup hook that loads a mutant in place of the original module.

The environment variables MUTANT_MODULE and MUTANT_FILE name the module and the mutant's file. The source tree never
changes, so several mutants can be tested in parallel. Processes that a test starts use the mutant too.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        with open(os.environ["MUTANT_FILE"], encoding="utf-8") as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != os.environ["MUTANT_MODULE"]:
            return None
        origin = os.environ["MUTANT_ORIGIN"]
        return importlib.util.spec_from_file_location(fullname, origin, loader=_Loader(fullname, origin))


if "MUTANT_MODULE" in os.environ:
    sys.meta_path.insert(0, _Finder())
