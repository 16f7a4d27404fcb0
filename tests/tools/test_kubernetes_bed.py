"""What is played in the Kubernetes of tools/kubernetes_bed: what the controller of Jobs decides, which of their fields
are kept, which names there are."""

import copy
import os

import pytest

from tools.kubernetes_bed import __main__ as bed
from tools.kubernetes_bed import jobs, kept
from tools.kubernetes_bed.controller import pod_of

DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
IGNORED = {"rules": [{"action": "Ignore", "onPodConditions": [DISRUPTED]}]}


def job(completions=2, backoff=0, status=None, **fields):
    spec = {"completions": completions, "parallelism": completions, "backoffLimit": backoff}
    given = {"completionMode": "Indexed", **fields}
    made = kept.stored({"metadata": {"name": "j", "uid": "u"}, "spec": {**spec, **given}})
    return {**made, "status": status or {}}


def pod(index, phase="Running", grace=None, conditions=(), reason=""):
    metadata = {"uid": f"{index}-{phase}", "annotations": {jobs.INDEX: str(index)}, "finalizers": [jobs.FINALIZER]}
    if grace is not None:
        metadata |= {"deletionTimestamp": "t", "deletionGracePeriodSeconds": grace}
    status = {"phase": phase, "conditions": list(conditions)}
    return {"metadata": metadata, "status": {**status, **({"reason": reason} if reason else {})}}


def decide(given, pods, record=None, now=0.0):
    return jobs.decide(given, pods, record or jobs.Record(), now)


def test_pods_that_are_missing_are_made():
    assert decide(job(3), [pod(1)]).create == [0, 2]
    assert decide(job(3, suspend=True), []).create == []
    assert [len(decide(job(3, suspend=True), [pod(0), pod(1, grace=5)]).delete)] == [1]


def test_a_pod_without_a_number():
    plain = job(1, completionMode="NonIndexed")
    assert decide(plain, []).create == [None]
    assert decide(plain, [{**pod(0), "metadata": {"uid": "a"}}]).create == []


def test_all_have_succeeded():
    plan = decide(job(2), [pod(0, "Succeeded"), pod(1, "Succeeded")])
    assert plan.condition[0] == "Complete"
    assert len(plan.release) == 2
    complete = job(2, status={"conditions": [{"type": "Complete", "status": "True"}]})
    assert decide(complete, []).create == []


def test_only_cgroups_of_the_same_folder_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(bed, "CGROUPS", tmp_path)
    ours, theirs = bed.prefix_of(tmp_path / "a"), bed.prefix_of(tmp_path / "b")
    for prefix in (ours, theirs):
        (tmp_path / "cpu" / f"{prefix}7" / "node1").mkdir(parents=True)
    bed.remove_old(ours)
    assert [path.name for path in (tmp_path / "cpu").iterdir()] == [f"{theirs}7"]
    (tmp_path / "link").symlink_to("a")
    assert bed.prefix_of(tmp_path / "link") == ours


def test_a_command_that_cannot_be_started_is_the_reason():
    assert bed.run(["sh", "-c", "exit 3"], os.environ, lambda: None) == 3
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        bed.run(["/no-such-program"], os.environ, lambda: None)


def test_the_first_failure_ends_a_fixed_job():
    record = jobs.Record()
    plan = decide(job(2), [pod(0), pod(1, "Failed")], record)
    assert plan.condition[0] == "FailureTarget"
    assert [jobs.index_of(each) for each in plan.delete] == [0]
    after = decide(job(2), [pod(1, "Failed")], record)
    assert after.condition[0] == "Failed"
    assert record.failed == 1  # counted once


def test_a_pod_that_is_deleted_counts_at_once_without_a_policy_and_at_its_end_with_one():
    assert decide(job(2), [pod(0), pod(1, grace=5)]).condition[0] == "FailureTarget"
    elastic = job(2, backoff=100, podFailurePolicy=IGNORED)
    record = jobs.Record()
    plan = decide(elastic, [pod(0), pod(1, grace=5)], record)
    assert (plan.create, record.failed) == ([], 0)
    plan = decide(elastic, [pod(0), pod(1, grace=0)], record, now=100.0)
    assert (plan.create, plan.wake, record.failed) == ([], 10.0, 1)
    assert decide(elastic, [pod(0)], record, now=110.0).create == [1]


def test_failures_wait_longer_and_longer_until_a_success():
    elastic, record = job(3, backoff=100, podFailurePolicy=IGNORED), jobs.Record()
    for number, wait in enumerate((10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 360.0, 360.0)):
        failed = pod(1, "Failed")
        failed["metadata"]["uid"] = str(number)
        assert decide(elastic, [pod(0), failed], record).wake == wait
    decide(elastic, [pod(2, "Succeeded")], record)
    assert record.streak == 0


@pytest.mark.parametrize("how", [{"conditions": [DISRUPTED]}, {"reason": "Evicted"}])
def test_a_pod_that_had_to_give_way_is_replaced_at_once(how):
    record = jobs.Record()
    plan = decide(job(2, backoff=100, podFailurePolicy=IGNORED), [pod(0), pod(1, "Failed", **how)], record)
    assert (plan.create, record.failed) == ([1], 0)


def test_what_a_pod_is_made_of():
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    given = job()
    given["spec"]["template"] = copy.deepcopy(template)
    made = pod_of(given, 3)
    assert made["metadata"]["generateName"] == "j-3-"
    assert made["metadata"]["annotations"] == {jobs.INDEX: "3"}
    assert made["spec"]["hostname"] == "j-3"
    assert made["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    assert given["spec"]["template"] == template
    assert pod_of(given, None)["metadata"]["generateName"] == "j-"


def test_fields_come_back_as_they_were_given():
    given = {"metadata": {"name": "j", "annotations": {"a": "b"}}, "spec": {"suspend": True, "completions": 1}}
    stored = kept.stored(given)
    assert stored["spec"] == {"completions": 1}
    assert kept.shown(stored) == {**given, "spec": {**given["spec"], "completionMode": "NonIndexed"}}
    plain = {"metadata": {"name": "j"}, "spec": {"completions": 1}}
    assert kept.stored(plain) == plain
    change = kept.patched({"spec": {"suspend": False}}, stored)
    assert "spec" not in change
    merged = {**stored, "metadata": {**stored["metadata"], **change["metadata"]}}
    assert kept.fields(merged)["suspend"] is False
    assert kept.patched({"spec": {"parallelism": 0}}, stored) == {"spec": {"parallelism": 0}}


def test_names_lead_to_pods_and_are_missed_for_a_while():
    pytest.importorskip("dns.message")
    from tools.kubernetes_bed.names import NEGATIVE_SECONDS, Names

    names = Names()
    addresses = [{"ip": "10.0.0.1", "hostname": "j-0"}]
    subsets = [{"addresses": addresses, "notReadyAddresses": [{"ip": "10.0.0.2"}]}]
    endpoints = {"metadata": {"name": "train", "namespace": "ml"}, "subsets": subsets}
    assert names.addresses("train.ml.svc.cluster.local.", 0.0) == set()
    names.learn("ADDED", endpoints)
    assert names.addresses("train.ml.svc.cluster.local.", NEGATIVE_SECONDS - 0.1) == set()  # as a cache has it
    assert names.addresses("Train.ml.svc.cluster.local.", NEGATIVE_SECONDS) == {"10.0.0.1", "10.0.0.2"}
    assert names.addresses("j-0.train.ml.svc.cluster.local.", 0.0) == {"10.0.0.1"}
    names.learn("DELETED", endpoints)
    assert names.addresses("j-0.train.ml.svc.cluster.local.", 0.0) == set()
