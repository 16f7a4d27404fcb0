"""The site's configuration lists all pages and public modules; a heavy test builds the site."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from tests.documents import ROOT

CONF = ROOT / "tools/site/conf.py"
FRONTENDS = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")


@pytest.fixture
def conf(monkeypatch):
    for name in (
        "TF_CPP_MIN_LOG_LEVEL",
        "CUDA_VISIBLE_DEVICES",
        "KERAS_BACKEND",
        "JAX_PLATFORMS",
        "TF_ENABLE_ONEDNN_OPTS",
    ):
        monkeypatch.setenv(name, "")  # undoes changes by the configuration
    return runpy.run_path(str(CONF))


def test_every_page_has_a_chapter_and_every_chapter_pages(conf):
    found = [path for pattern in conf["include_patterns"] for path in ROOT.glob(pattern)]
    pages = {str(path.relative_to(ROOT).with_suffix("")) for path in found}
    patterns = [pattern for chapter in conf["PAGES"].values() for pattern in chapter]
    assert {"README", "docs/pytorch/cookbook", "docs/adr/0001-one-coordinator"} <= pages
    lost = {page for page in pages - {conf["root_doc"]} if not any(fnmatch(page, pattern) for pattern in patterns)}
    assert not lost, f"{CONF}: PAGES has no place for {lost}"
    empty = [pattern for pattern in patterns if not any(fnmatch(page, pattern) for page in pages)]
    assert not empty, f"{CONF}: PAGES names what is not there: {empty}"


def test_every_public_module_is_in_the_reference():
    texts = [page.read_text() for page in (ROOT / "docs/api").glob("*.md")]
    named = {name for text in texts for name in re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)}
    assert {*FRONTENDS, "horovod.runner", "horovod.common.exceptions"} <= named
    files = {name: ROOT / "src" / name.replace(".", "/") for name in named}
    missing = [name for name, path in files.items() if not (path.is_dir() or path.with_suffix(".py").exists())]
    assert not missing, f"docs/api names modules that are not there: {missing}"


@pytest.mark.heavy
def test_the_site_builds_without_a_warning(tmp_path):
    """As `make site`: links to pages, headings and files, docstrings, and the API reference."""
    pytest.importorskip("sphinx")
    for needed in ("torch", "tensorflow", "keras"):
        if not importlib.util.find_spec(needed):
            pytest.skip(f"{needed} is not installed")
    argv = ["-E", "-W", "--keep-going", "-q", "-b", "html", "-c", "tools/site", "-d"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *argv, str(tmp_path / "cache"), ".", str(tmp_path / "site")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DistributedOptimizer" in (tmp_path / "site/docs/api/torch.html").read_text()
    assert "docs/index.html" in (tmp_path / "site/index.html").read_text()
