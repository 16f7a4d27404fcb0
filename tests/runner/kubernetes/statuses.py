"""Pod statuses as an API server reports them in each case, written from its documentation."""


def pod(name, component="worker", index="0", node="node-a", **status):
    metadata = {
        "name": name,
        "labels": {"app.kubernetes.io/component": component, "app.kubernetes.io/instance": "train"},
        "annotations": {"batch.kubernetes.io/job-completion-index": index} if component == "worker" else None,
    }
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Pending", **status}}


RUNNING = {"phase": "Running", "containerStatuses": [{"name": "horovod", "state": {"running": {}}}]}
CREATING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "horovod", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
PREEMPTED = {
    "phase": "Failed",
    "conditions": [
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "preempting to accommodate a higher priority pod",
        }
    ],
}


def pulling(reason, message=""):
    waiting = {"reason": reason, "message": message}
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "horovod", "image": "app:1", "state": {"waiting": waiting}}],
    }


def terminated(code, reason="Error", message=""):
    terminated = {"exitCode": code, "reason": reason, "message": message}
    return {
        "phase": "Succeeded" if code == 0 else "Failed",
        "containerStatuses": [{"name": "horovod", "state": {"terminated": terminated}}],
    }


def init_failed(code, message=""):
    terminated = {"exitCode": code, "reason": "Error", "message": message}
    waiting = {"name": "horovod", "state": {"waiting": {"reason": "PodInitializing"}}}
    return {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "fills", "state": {"terminated": terminated}}],
        "containerStatuses": [waiting],
    }


FAILED_JOB = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}}
QUOTA = {
    "reason": "FailedCreate",
    "involvedObject": {"kind": "Job", "name": "train-workers"},
    "message": 'Error creating: pods "train-workers-0" is forbidden: exceeded quota: few, requested: pods=1',
}
