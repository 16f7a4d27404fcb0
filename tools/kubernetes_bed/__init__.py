"""A Kubernetes on this machine, for tests. `python -m tools.kubernetes_bed [--nodes N] COMMAND...` runs a command
beside it.

Real: etcd, API server, controller manager (garbage collector, endpoints, quotas, service accounts, time to live),
scheduler, and on each node kubelet, containerd, runc and a pod network of bridges. They are of Kubernetes 1.20, the
newest that can be built from Debian's sources. What that version lacks is played here, on the real API: the controller
of Jobs as later versions have it (Indexed, suspended, with a failure policy), and a name server in place of CoreDNS.
There is no kube-proxy: services have no addresses of their own, headless ones have their pods'.

All of it runs in namespaces of its own (network, mounts, processes), which end with it, however it ends.
"""
