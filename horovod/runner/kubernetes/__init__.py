"""Jobs on Kubernetes without an operator: `horovodrun kubernetes`. See `docs/adr/0031-kubernetes.md`.

    here                             the cluster
    command, follow -- creates --->  a Job with the launcher's pod (launcher.py), a service by which it is found, a
                                     secret, and an Indexed Job of pods (worker.py), which call the launcher and become
                                     its agents

Pure: names, flags, volumes, request, manifests (what is created), pods (what the cluster says of it, in words), judge
(when it is over).
"""
