"""Simulated node of the cluster: namespaces, cgroups, containerd and a kubelet."""

import json
import shlex
import subprocess
from pathlib import Path

import yaml

from tools.kubernetes_bed.process import Process, wait_until

DNS, API = "10.77.0.1", "https://10.77.0.1:6443"
# Kernel settings that kubelets require. Nodes see these values in place of this machine's values.
SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
IMPORT_SECONDS = 600


def name_of(number: int) -> str:
    return f"bed-{number}"


def address_of(number: int) -> str:
    return f"10.77.0.{number}"


def token_of(number: int) -> str:
    return f"token-of-node-{number}"


def run(*argv: str, seconds: float = 60) -> str:
    """Run a command and return its output. Raises RuntimeError or TimeoutExpired if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kubeconfig(server: str, token: str, certificate: str = "") -> dict[str, object]:
    """Return a kubeconfig for one user.

    Without `certificate`, clients do not check the server's certificate.
    """
    cluster: dict[str, object] = {"server": server}
    if certificate:
        cluster["certificate-authority"] = certificate
    else:
        cluster["insecure-skip-tls-verify"] = True
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "user", "namespace": "default"}}],
    }


def kubelet_config(number: int, cgroup: str) -> dict[str, object]:
    """Return a kubelet configuration that uses the defaults of later Kubernetes versions."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": address_of(number),
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "featureGates": {"SizeMemoryBackedVolumes": True},
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "4s",
        "evictionPressureTransitionPeriod": "10s",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def containerd_config(home: Path, store: Path, nodes_pods: Path) -> str:
    """Return containerd's configuration as TOML."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    runc = f"{cri}.containerd.runtimes.runc"
    return f"""version = 2
root = "{store}"
state = "{home}/containerd"
[grpc]
  address = "{home}/containerd.sock"
[{cri}]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{runc}]
      runtime_type = "io.containerd.runc.v2"
      [{runc}.options]
        SystemdCgroup = false
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{nodes_pods}"
"""


def network_config(number: int, home: Path) -> dict[str, object]:
    """Return the pod network configuration of a node."""
    ranges = [[{"subnet": f"10.244.{number}.0/24"}]]
    addresses = {
        "type": "host-local",
        "dataDir": f"{home}/addresses",
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


class Node:
    """Simulated node of the cluster, with its processes.

    Attributes:
        number: Number of the node, starting at 1.
        home: Folder for files of this run.
        store: Folder for images, which is kept between runs.
        binaries: Folder with the Kubernetes programs.
        cgroup: Cgroup of the node.
        name: Name of the node.
    """

    def __init__(self, number: int, home: Path, store: Path, binaries: Path, cgroup: str) -> None:
        self.number, self.home, self.store, self.binaries, self.cgroup = number, home, store, binaries, cgroup
        self.name = name_of(number)
        for each in (home, store, home / "cni"):
            each.mkdir(parents=True, exist_ok=True)
        self._holder = self._hold()

    def _hold(self) -> Process:
        """Start the process that holds the node's namespaces, and wait until they are ready."""
        settings = self.home / "settings"
        lines = ["set -e", "mount -t tmpfs -o mode=755 tmpfs /run", "mount -t tmpfs tmpfs /var/log"]
        lines += ["mount -t tmpfs -o mode=755 tmpfs /var/lib", "mkdir -p /run/netns /run/lock"]
        for name, value in SETTINGS.items():
            path = settings / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value + "\n")
            lines.append(f"mount --bind {path} /proc/sys/{name}")
        lines += [f"hostname {self.name}", "ip link set lo up", f"touch {self.home}/ready", "exec sleep infinity"]
        # Create a network namespace for every node except the first, which shares that of the control plane.
        own = ["--net"] if self.number > 1 else []
        argv = ["unshare", "--mount", "--uts", "--propagation", "private", *own, "bash", "-c", "\n".join(lines)]
        holder = Process(f"node {self.number}", argv, self.home / "node.log")
        wait_until(lambda: (self.home / "ready").exists(), 10, f"{self.name}'s namespaces", holder)
        return holder

    def inside(self, *argv: str) -> list[str]:
        """Return a command line that runs a command inside the node's namespaces."""
        names = ["--mount", "--uts", *(["--net"] if self.number > 1 else [])]
        return ["nsenter", "-t", str(self._holder.pid), *names, "--", *argv]

    def connect(self, nodes: range) -> None:
        """Connect the node to the bridge on the first node, and add routes to the pods on the other nodes."""
        if self.number > 1:
            port = f"node{self.number}"
            run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
            run("ip", "link", "set", port, "master", "nodes0", "up")
            run(*self.inside("ip", "address", "add", f"{address_of(self.number)}/24", "dev", "eth0"))
            run(*self.inside("ip", "link", "set", "eth0", "up"))
        run(*self.inside("sysctl", "-qw", "net.ipv4.ip_forward=1"))
        for other in nodes:
            if other != self.number:
                run(*self.inside("ip", "route", "add", f"10.244.{other}.0/24", "via", address_of(other)))

    def start_containers(self, images: list[Path]) -> None:
        """Start containerd, load the given images, and remove containers left by earlier runs."""
        socket = self.home / "containerd.sock"
        (self.home / "cni/10-pods.conflist").write_text(json.dumps(network_config(self.number, self.home)))
        config = self.home / "containerd.toml"
        config.write_text(containerd_config(self.home, self.store, self.home / "cni"))
        cri = self.store / "io.containerd.grpc.v1.cri"
        if cri.exists():
            run("rm", "-rf", "--one-file-system", str(cri))
        started = Process("containerd", self.inside("containerd", "-c", str(config)), self.home / "containerd.log")
        wait_until(lambda: socket.exists() and self._responds(), 30, "containerd", started)
        for old in self.ctr("containers", "ls", "-q").split():
            self.ctr("containers", "rm", old)
        for image in images:
            known, mark = self.store / f"{image.stem}.id", image.with_suffix(".id").read_text()
            if not known.exists() or known.read_text() != mark:
                self.ctr("images", "import", str(image), seconds=IMPORT_SECONDS)
                known.write_text(mark)

    def _responds(self) -> bool:
        try:
            self.ctr("version")
        except RuntimeError:
            return False
        return True

    def ctr(self, *argv: str, seconds: float = 60) -> str:
        """Run ``ctr``, containerd's client, and return its output."""
        return run(*self.inside("ctr", "-a", f"{self.home}/containerd.sock", "-n", "k8s.io", *argv), seconds=seconds)

    def start_kubelet(self) -> None:
        config, access = self.home / "kubelet.yaml", self.home / "kubelet.conf"
        config.write_text(yaml.safe_dump(kubelet_config(self.number, self.cgroup)))
        access.write_text(yaml.safe_dump(kubeconfig(API, token_of(self.number))))
        argv = [
            *(str(self.binaries / "kubelet"), f"--config={config}", f"--kubeconfig={access}"),
            *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{self.home}/containerd.sock"),
            *(f"--root-dir={self.home}/kubelet", f"--cert-dir={self.home}/certificates"),
            *(f"--hostname-override={self.name}", f"--node-ip={address_of(self.number)}"),
            "--pod-infra-container-image=localhost/pause:1",
        ]
        Process(f"kubelet {self.number}", self.inside(*argv), self.home / "kubelet.log")

    def logs(self) -> list[Path]:
        return sorted(self.home.glob("*.log"))
