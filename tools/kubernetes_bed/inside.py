"""Program that starts the cluster within its namespaces and runs a command.

python -m tools.kubernetes_bed.inside WORK CACHE NODES CGROUP -- COMMAND...
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tools.kubernetes_bed import node
from tools.kubernetes_bed.client import ADMIN, PORT, Client, Refused
from tools.kubernetes_bed.process import Process, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROXY_PORT = 8443
USERS = {"bob": "token-of-bob", "nobody": "token-of-nobody"}
"""Users without any permissions except those that a test grants."""
IMAGE = "localhost/horovod:bed"


class ControlPlane:
    """Control plane of the cluster: etcd, API server and controllers. Its files are in `home`."""

    def __init__(self, home: Path, binaries: Path, nodes: range) -> None:
        self.home, self.binaries = home, binaries
        home.mkdir()
        tokens = [f'{ADMIN},admin,1,"system:masters"']
        tokens += [f'{node.token_of(n)},system:node:{node.name_of(n)},{n + 1},"system:nodes"' for n in nodes]
        tokens += [f"{token},{name},{name}" for name, token in USERS.items()]
        (home / "tokens.csv").write_text("\n".join(tokens) + "\n")
        (home / "admin.conf").write_text(yaml.safe_dump(node.kubeconfig(f"https://127.0.0.1:{PORT}", ADMIN)))
        node.run("openssl", "genrsa", "-out", str(home / "accounts.key"), "2048")

    def start(self) -> None:
        """Start all control plane processes and wait until the API server responds."""
        etcd = [
            *("etcd", "--data-dir", str(self.home / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379"),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
        ]
        Process("etcd", etcd, self.home / "etcd.log", self.home)
        key = self.home / "accounts.key"
        api = self._process(
            "kube-apiserver",
            *("--etcd-servers=http://127.0.0.1:2379", f"--cert-dir={self.home}/certificates", f"--secure-port={PORT}"),
            *("--bind-address=0.0.0.0", f"--advertise-address={node.DNS}", "--service-cluster-ip-range=10.96.0.0/16"),
            *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-signing-key-file={key}"),
            *(f"--service-account-key-file={key}", "--authorization-mode=Node,RBAC", "--allow-privileged=true"),
            *(f"--token-auth-file={self.home}/tokens.csv", "--enable-admission-plugins=NodeRestriction"),
            "--feature-gates=TTLAfterFinished=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        wait_until(lambda: _answers("/readyz"), 120, "the API server", api)
        config = self.home / "admin.conf"
        self._process(
            "kube-controller-manager",
            *(f"--kubeconfig={config}", f"--service-account-private-key-file={key}", "--leader-elect=false"),
            *("--use-service-account-credentials=true", f"--cert-dir={self.home}/manager", "--bind-address=127.0.0.1"),
            *("--controllers=*,-job,-cronjob", "--feature-gates=TTLAfterFinished=true", "--node-monitor-period=2s"),
            *("--node-monitor-grace-period=120s", "--kube-api-qps=100", "--kube-api-burst=100"),
        )
        self._process(
            "kube-scheduler",
            *(f"--kubeconfig={config}", "--leader-elect=false", f"--cert-dir={self.home}/scheduler"),
            "--bind-address=127.0.0.1",
        )

    def _process(self, name: str, *flags: str) -> Process:
        return Process(name, [str(self.binaries / name), *flags], self.home / f"{name}.log", self.home)


def _answers(path: str) -> bool:
    try:
        Client().request("GET", path)
    except Refused as error:
        return error.status < 500 and error.status != 403
    except ValueError:
        # The server is ready, although its reply "ok" is not JSON.
        return True
    except OSError:
        return False
    return True


def _ready(nodes: range) -> bool:
    client = Client()
    found = client.request("GET", "/api/v1/nodes")["items"]
    ready = {
        each["metadata"]["name"]
        for each in found
        for condition in each["status"]["conditions"]
        if (condition["type"], condition["status"]) == ("Ready", "True")
    }
    tainted = {each["metadata"]["name"] for each in found if each["spec"].get("taints")}
    try:
        client.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
    except Refused:
        return False
    return ready - tainted == {node.name_of(number) for number in nodes}


def start(work: Path, cache: Path, nodes: range, cgroup: str) -> dict[str, str]:
    """Start the cluster, and return the environment variables that clients need to access it."""
    node.run("ip", "link", "set", "lo", "up")
    node.run("ip", "link", "add", "nodes0", "type", "bridge")
    node.run("ip", "address", "add", f"{node.DNS}/24", "dev", "nodes0")
    node.run("ip", "link", "set", "nodes0", "up")
    binaries = cache / "bin"
    plane = ControlPlane(work / "control", binaries, nodes)
    plane.start()
    certificate = str(work / "control/played.pem")
    subject = ["-subj", "/CN=kubernetes-bed", "-addext", f"subjectAltName=IP:{node.DNS}"]
    subject += ["-days", "1", "-keyout", certificate, "-out", f"{certificate}.crt"]
    node.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    node.run("sh", "-c", f"cat {certificate}.crt >> {certificate}")
    command = [sys.executable, "-u", "-m", "tools.kubernetes_bed.played", node.DNS, str(PROXY_PORT), certificate]
    played = Process("what is played", command, work / "control/played.log", ROOT)
    images = [cache / "images" / f"{name}.tar" for name in ("pause", "app")]
    started = [
        node.Node(n, work / f"node{n}", cache / f"node{n}", binaries, f"{cgroup}/{node.name_of(n)}") for n in nodes
    ]
    for each in started:
        each.connect(nodes)
        each.start_containers(images)
        each.start_kubelet()
    wait_until(lambda: _ready(nodes), 120, f"{len(nodes)} nodes to be ready")
    played.check()
    return _environment(work, len(nodes), binaries)


def _environment(work: Path, nodes: int, binaries: Path) -> dict[str, str]:
    server = f"https://{node.DNS}:{PROXY_PORT}"
    paths = {}
    for name, token in {"admin": ADMIN, **USERS}.items():
        path = work / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(node.kubeconfig(server, token, str(work / "control/played.pem.crt"))))
        paths[name] = str(path)
    return {
        "KUBECONFIG": paths["admin"],
        "HVD_TEST_KUBECONFIG": paths["admin"],
        "HVD_TEST_IMAGE": IMAGE,
        "HVD_TEST_KUBECONFIG_BOB": paths["bob"],
        "HVD_TEST_BED": str(work),
        "HVD_TEST_NODES": str(nodes),
        "HVD_TEST_KUBECTL": str(binaries / "kubectl"),
        "HVD_TEST_SERVER_CONFIG": str(work / "control/admin.conf"),
    }


def main() -> int:
    """Run a command with access to the cluster, and return the command's exit code."""
    work, cache, count, cgroup, _, *command = sys.argv[1:]
    began = time.monotonic()
    nodes = range(1, int(count) + 1)
    environ = start(Path(work), Path(cache), nodes, cgroup)
    print(f"kubernetes_bed: {count} node(s) ready after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    process = subprocess.Popen(command, env={**os.environ, **environ})
    # Ignore the signal here, because the terminal sends it to the command too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
