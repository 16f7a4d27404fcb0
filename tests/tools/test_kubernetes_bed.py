"""The simulated Kubernetes of tools/kubernetes_bed: decisions of its Job controller, and preserved fields of Jobs."""

from tools.kubernetes_bed import __main__ as bed
from tools.kubernetes_bed import jobs, kept


def job(completions=2, backoff=0, **fields):
    spec = {"completions": completions, "parallelism": completions, "backoffLimit": backoff}
    given = {"completionMode": "Indexed", **fields}
    return {**kept.stored({"metadata": {"name": "j", "uid": "u"}, "spec": {**spec, **given}}), "status": {}}


def pod(index, phase="Running", conditions=()):
    metadata = {"uid": f"{index}-{phase}", "annotations": {jobs.INDEX: str(index)}, "finalizers": [jobs.FINALIZER]}
    return {"metadata": metadata, "status": {"phase": phase, "conditions": list(conditions)}}


def decide(given, pods, record=None):
    return jobs.decide(given, pods, record or jobs.Record(), 0.0)


def test_missing_pods_are_made_until_all_have_succeeded():
    assert decide(job(3), [pod(1)]).create == [0, 2]
    assert decide(job(3, suspend=True), []).create == []
    assert decide(job(1, completionMode="NonIndexed"), []).create == [None]
    assert decide(job(2), [pod(0, "Succeeded"), pod(1, "Succeeded")]).condition[0] == "Complete"


def test_the_first_failure_ends_a_job_of_fixed_size():
    record = jobs.Record()
    plan = decide(job(2), [pod(0), pod(1, "Failed")], record)
    assert plan.condition[0] == "FailureTarget"
    assert [jobs.index_of(each) for each in plan.delete] == [0]
    assert decide(job(2), [pod(1, "Failed")], record).condition[0] == "Failed"
    assert record.failed == 1, "counted once"


def test_only_cgroups_of_the_same_folder_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(bed, "CGROUPS", tmp_path)
    ours, theirs = bed.prefix_of(tmp_path / "a"), bed.prefix_of(tmp_path / "b")
    for prefix in (ours, theirs):
        (tmp_path / "cpu" / f"{prefix}7" / "node1").mkdir(parents=True)
    bed.remove_old(ours)
    assert [path.name for path in (tmp_path / "cpu").iterdir()] == [f"{theirs}7"]


def test_fields_of_a_job_come_back_as_they_were_given():
    given = {"metadata": {"name": "j", "annotations": {"a": "b"}}, "spec": {"suspend": True, "completions": 1}}
    stored = kept.stored(given)
    assert stored["spec"] == {"completions": 1}
    assert kept.shown(stored) == {**given, "spec": {**given["spec"], "completionMode": "NonIndexed"}}
    change = kept.patched({"spec": {"suspend": False}}, stored)
    merged = {**stored, "metadata": {**stored["metadata"], **change["metadata"]}}
    assert kept.fields(merged)["suspend"] is False
