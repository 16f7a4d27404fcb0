"""The examples for plain arrays, run as a user runs them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, identical_parameters, launch

if importlib.util.find_spec("sklearn") is None:  # importing it takes seconds
    pytest.skip("sklearn is not installed", allow_module_level=True)


def test_a_linear_classifier_learns_on_both_workers(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, ROOT / "examples/numpy/sgd_classifier.py")
    accuracy = re.search(r"final held-out accuracy ([\d.]+) on 360 images", out)
    assert accuracy, out
    assert float(accuracy[1]) >= 0.93
    assert len(re.findall(r"epoch +\d+/10  accuracy [\d.]+", out)) == 10
    identical_parameters(out)


@pytest.mark.heavy
def test_clusters_of_both_workers_digits(tmp_path: Path) -> None:
    out, _ = launch(tmp_path, ROOT / "examples/numpy/kmeans.py")
    inertia = re.search(r"nearest of 10 centres ([\d.]+)", out)
    homogeneity = re.search(r"homogeneity of the clusters ([\d.]+)", out)
    assert inertia, out
    assert homogeneity, out
    assert float(inertia[1]) < 2.8  # 4.7 with one centre for all
    assert float(homogeneity[1]) > 0.65
    identical_parameters(out)
