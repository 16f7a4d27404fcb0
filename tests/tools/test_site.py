"""The site's configuration knows all pages and all public modules; `make site` checks the rest (links, docstrings)."""

import re
import runpy
from fnmatch import fnmatch

import pytest

from tests.documents import ROOT

CONF = ROOT / "tools/site/conf.py"
FACES = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")


@pytest.fixture
def conf(monkeypatch):
    for name in (
        "TF_CPP_MIN_LOG_LEVEL",
        "CUDA_VISIBLE_DEVICES",
        "KERAS_BACKEND",
        "JAX_PLATFORMS",
        "TF_ENABLE_ONEDNN_OPTS",
    ):
        monkeypatch.setenv(name, "")  # what the configuration sets does not stay
    return runpy.run_path(str(CONF))


def test_every_page_has_a_chapter_and_every_chapter_pages(conf):
    found = [path for pattern in conf["include_patterns"] for path in ROOT.glob(pattern)]
    pages = {str(path.relative_to(ROOT).with_suffix("")) for path in found}
    patterns = [pattern for chapter in conf["PAGES"].values() for pattern in chapter]
    assert {"README", "docs/pytorch/recipes", "docs/adr/0001-one-coordinator"} <= pages
    lost = {page for page in pages - {conf["root_doc"]} if not any(fnmatch(page, pattern) for pattern in patterns)}
    assert not lost, f"{CONF}: PAGES has no place for {lost}"
    empty = [pattern for pattern in patterns if not any(fnmatch(page, pattern) for page in pages)]
    assert not empty, f"{CONF}: PAGES names what is not there: {empty}"


def test_every_public_module_is_in_the_reference():
    texts = [page.read_text() for page in (ROOT / "docs/api").glob("*.md")]
    named = {name for text in texts for name in re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)}
    assert {*FACES, "horovod.runner", "horovod.common.exceptions"} <= named
    files = {name: ROOT / name.replace(".", "/") for name in named}
    gone = [name for name, path in files.items() if not (path.is_dir() or path.with_suffix(".py").exists())]
    assert not gone, f"docs/api names modules that are not there: {gone}"
