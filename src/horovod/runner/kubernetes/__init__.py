"""Jobs on Kubernetes without an operator: `horovodrun kubernetes`. See `docs/adr/0032-kubernetes.md`.

The command runs on the user's machine. It creates the Kubernetes objects of the job, shows the output of the
launcher's pod, and deletes the objects at the end. The launcher's pod runs the job on agents in the worker pods.

    here                             the cluster
    command, follow -- creates --->  a Job with the launcher's pod (launcher.py), a Service with its address, a Secret,
                                     and an Indexed Job of pods (worker.py), which connect to the launcher and become
                                     its agents

Modules that perform no I/O: flags, values, request, manifests (the objects to create), pods (the objects' states as
text), judge (whether the job has ended).
"""
