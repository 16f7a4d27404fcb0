"""Kubernetes cluster on one machine, for tests.

`python -m tools.kubernetes_bed [--nodes N] COMMAND...` runs a command with access to the cluster.

Real components: etcd, API server, controller manager (garbage collector, endpoints, quotas, service accounts, time to
live), scheduler, and on each node kubelet, containerd, runc and a pod network of bridges. Their version is Kubernetes
1.20, the newest that can be built from Debian's sources. Features of later versions are simulated on the real API: the
controller of Jobs (Indexed, suspended, with a failure policy), and a name server instead of CoreDNS. There is no
kube-proxy, so services have no addresses of their own; headless services resolve to the addresses of their pods. The
whole cluster runs in separate namespaces (network, mounts, processes), which always disappear when it ends.
"""
