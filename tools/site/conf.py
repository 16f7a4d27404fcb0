"""Sphinx configuration of the documentation site. `make site` builds the site.

The site contains all pages of the repository and the API reference. The repository itself is the source, so relative
links work both on GitHub and on the site. This file only adds the order of the pages.
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any

# Make the frameworks use the CPU and print no messages, and select the Keras backend that supports all features.
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", KERAS_BACKEND="tensorflow", JAX_PLATFORMS="cpu")
# Turn off oneDNN operations, because TensorFlow prints a message when they are enabled.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

ROOT = Path(__file__).resolve().parents[2]

project = "Horovod, reborn"
author = "its maintainers"
version = release = re.findall(r'__version__ = "(.+)"', (ROOT / "src/horovod/_version.py").read_text())[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "tools/mutants/README.md"]
include_patterns += ["benchmarks/*.md", "benchmarks/history/*.md"]
# Folders in which Sphinx does not look for pages.
exclude_patterns = [".*", "build", "dist", "runs", "core", "src", "tests", "examples", "fuzz", "bindings"]
root_doc = "docs/index"
PAGES = {
    "Start": [
        "README",
        "docs/getting-started",
        "docs/tutorial",
        "docs/before-and-after",
        "docs/choosing",
        "docs/faq",
        "docs/glossary",
        "docs/status",
        "docs/all-pages",
    ],
    "Train": [
        "docs/pytorch",
        "docs/pytorch/*",
        "docs/tensorflow",
        "docs/jax",
        "docs/evaluation",
        "docs/data",
        "docs/numpy",
        "docs/mxnet",
        "docs/data-service",
        "docs/gpu",
        "docs/run",
        "docs/auto",
        "docs/spark-estimators",
        "docs/compression",
        "docs/planner",
        "docs/autotune",
        "docs/strategies",
        "docs/tuning",
    ],
    "Run": [
        "docs/horovodrun",
        "docs/output",
        "docs/elastic",
        "docs/elastic/*",
        "docs/chaos",
        "docs/spark",
        "docs/mpi",
        "docs/ray",
        "docs/containers",
        "docs/kubernetes",
        "docs/clouds/*",
        "docs/launchers/README",
        "docs/launchers/*",
        "docs/settings",
        "SECURITY",
    ],
    "Debug": [
        "docs/troubleshooting",
        "docs/hangs",
        "docs/slow",
        "docs/timeline",
        "docs/dashboard",
        "docs/debugging",
        "docs/performance",
        "benchmarks/*",
        "benchmarks/history/*",
    ],
    "Reference": ["docs/api/README", "docs/api/*", "docs/frontends"],
    "Develop": [
        "docs/architecture",
        "docs/architecture/*",
        "docs/design/*",
        "docs/how-a-job-starts",
        "docs/failure-detection",
        "docs/wire",
        "docs/where-to-change",
        "CONTRIBUTING",
        "tools/mutants/README",
        "docs/adr/README",
        "docs/adr/*",
        "docs/dependencies",
        "docs/releasing",
        "CHANGELOG",
    ],
}
"""All pages by section; the build fails if one is missing."""

suppress_warnings = [
    # Allow skipped heading levels, because the generated page RESULTS.md has some.
    "myst.header",
    # Ignore ambiguous names under "Raises:", because every frontend exports the same exception classes.
    "ref.python",
]
# Leave the description of attributes to autodoc. Sphinx would report duplicates if napoleon described them too.
napoleon_use_ivar = True
# Check links to headings up to level 4.
myst_heading_anchors = 4
# Draw Mermaid code blocks as diagrams, as GitHub does.
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"

DEFAULTS = {
    r"<?ProcessSet\(process_set_id=0.*?\)>?": "global_process_set",
    r"<class '[\w.]*NoneCompressor'>": "Compression.none",
    r"\bop: int = 0": "op: int = Average",
}

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
templates_path: list[str] = []


REFERENCE = [
    "horovod.torch",
    "horovod.tensorflow",
    "horovod.keras",
    "horovod.jax",
    "horovod.numpy",
    "horovod.tensorflow.keras",
    "horovod.data",
    "horovod.runner",
    "horovod.spark",
]
CONSTANTS = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "global_process_set"]
ELSEWHERE = ["Compression", "Metric", "ProcessSet", "callbacks", *CONSTANTS]
"""Names that several modules share, and that are described only once: for one module, in a separate section or on the
first page of the reference."""


def _names(module: Any) -> list[str]:
    return [name for name in module.__all__ if not name.startswith("_")]


def _load(app: Any) -> None:
    """Import all public names so that autodoc finds them, including those that modules load lazily."""
    for module in map(importlib.import_module, REFERENCE):
        vars(module).update({name: getattr(module, name) for name in _names(module)})


def _check(app: Any, environment: Any) -> None:
    """Warn about public names that are missing from the API reference."""
    # Import here, because tests load this file without Sphinx.
    from sphinx.util import logging

    described = environment.domains["py"].objects
    for module in map(importlib.import_module, REFERENCE):
        lost = [n for n in _names(module) if f"{module.__name__}.{n}" not in described and n not in ELSEWHERE]
        if lost:
            logging.getLogger("site").warning("%s: not in the reference: %s", module.__name__, ", ".join(lost))


def _add_order(app: Any, name: str, content: list[str]) -> None:
    """Append the table of contents to the root page. (On GitHub, the page has links instead.)"""
    if name != root_doc:
        return
    for caption, pages in PAGES.items():
        entries = "\n".join(f"/{page}" for page in pages)
        content[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{entries}\n```\n"


def _shorten(
    app: Any, what: str, name: str, value: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show default values as written in the source code.

    autodoc_preserve_defaults does not support functions that are bound methods.
    """
    for pattern, replacement in DEFAULTS.items():
        arguments = arguments and re.sub(pattern, replacement, arguments)
    return arguments, returns


def _add_entrance(app: Any, failure: Exception | None) -> None:
    if failure is None and app.builder.name == "html":
        goal = f"{root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={goal}"><a href="{goal}">{project}</a>\n'
        )


def setup(app: Any) -> None:
    app.connect("builder-inited", _load)
    app.connect("env-check-consistency", _check)
    app.connect("source-read", _add_order)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("build-finished", _add_entrance)
