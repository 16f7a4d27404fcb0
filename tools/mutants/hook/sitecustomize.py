"""Start-up hook of Python that loads the module MUTANT_MODULE from the file MUTANT_FILE.

With this hook, the source tree never changes, several mutants can be tried in parallel, and processes that a test
starts use the mutant as well.
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
