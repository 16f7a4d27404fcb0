"""Jobs on Kubernetes without an operator: `horovodrun kubernetes`. See `docs/adr/0032-kubernetes.md`.

    here                             the cluster
    command, follow -- creates --->  a Job with the launcher's pod (launcher.py), a Service with its address, a Secret,
                                     and an Indexed Job of pods (worker.py), which connect to the launcher and become
                                     its agents

Modules that perform no I/O: flags, values, request, manifests (the objects to create), pods (the objects' states as
text), judge (whether the job has ended).
"""
