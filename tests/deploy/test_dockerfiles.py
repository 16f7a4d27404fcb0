"""Checks of the images of deploy and .devcontainer without building them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
DOCKERFILES = [DOCKER / "Dockerfile", DOCKER / "ssh.Dockerfile", ROOT / ".devcontainer/Dockerfile"]
IMAGES = DOCKERFILES[:2]
CLOUDS = [ROOT / "deploy/clouds/Dockerfile", ROOT / "deploy/azureml/environment/Dockerfile"]
ALL = [*DOCKERFILES, *CLOUDS]


def name(path):
    return str(path.relative_to(ROOT))


def instructions(path):
    """Return (instruction, rest) of each, with continued lines joined and comments removed."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def instructions_of(path, instruction):
    return [rest for found, rest in instructions(path) if found == instruction]


def test_no_dockerfile_is_forgotten():
    assert {*(ROOT / "deploy").rglob("*Dockerfile"), *(ROOT / ".devcontainer").rglob("*Dockerfile")} == set(ALL)


@pytest.mark.parametrize("path", ALL, ids=name)
def test_bases_are_pinned(path):
    """By digest; or they are one of our images, a stage of the same file, or a dated build of Microsoft's."""
    defaults = dict(each.split("=", 1) for each in instructions_of(path, "ARG") if "=" in each)
    assert instructions_of(path, "FROM")
    for image in (each.split()[0] for each in instructions_of(path, "FROM")):
        named = defaults[image.strip("${}")] if image.startswith("$") else image
        dated = re.fullmatch(r"mcr\.microsoft\.com/azureml/[\w.-]+:20\d{6}\.v\d+", named)
        assert dated or re.search(r"@sha256:[0-9a-f]{64}$", named) or named == "localhost/horovod:cpu"


@pytest.mark.parametrize("path", ALL, ids=name)
def test_packages_of_python_are_pinned(path):
    """Packages in the file itself; the others are in requirements files."""
    for each in instructions_of(path, "RUN"):
        for arguments in re.findall(r"pip install ([^&]+)", each):
            named = [instruction for instruction in arguments.split() if not instruction.startswith(("-", "$", "/"))]
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", instruction) for instruction in named), named


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_images_are_unprivileged_and_have_health_checks(path):
    found = instructions(path)
    last = max(index for index, (key, _) in enumerate(found) if key == "FROM")
    assert [rest for key, rest in found[last:] if key == "USER"][-1] == "1000:1000"
    assert len([1 for key, _ in found[last:] if key == "HEALTHCHECK"]) == 1
    assert not any(re.search("KEY|TOKEN|PASSWORD|SECRET", rest) for key, rest in found if key in ("ARG", "ENV"))


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.txt")), ids=lambda path: path.name)
def test_requirements_are_exact(path):
    text = "\n".join(line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    lines = text.replace(" \\\n", "").split("\n")
    hashes = "" if path.name == "cpu.txt" else r"( +--hash=sha256:[0-9a-f]{64})+"
    assert lines
    assert all(re.fullmatch(rf"[A-Za-z0-9_.-]+==[0-9][\w.+]*{hashes}", line) for line in lines)


def test_the_image_has_the_packages_dependencies():
    text = (ROOT / "pyproject.toml").read_text()
    required = re.findall(r'"([\w-]+)>=', re.search(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)[1])
    pinned = {line.split("==")[0].lower() for line in (DOCKER / "runtime.txt").read_text().splitlines() if "==" in line}
    assert len(required) >= 4
    assert set(required) <= pinned


def test_copied_paths_exist_and_are_not_ignored():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    for path in IMAGES:
        for each in instructions_of(path, "COPY"):
            if each.startswith("--from="):
                continue
            for source in each.split()[:-1]:
                name = source.replace("${FLAVOR}", "cuda").rstrip("/")
                assert (ROOT / name).exists(), name
                assert any(name == rule or name.startswith(f"{rule}/") for rule in allowed), name


def test_keys_are_created_once_and_for_their_owner(tmp_path):
    folder = tmp_path / "keys"
    subprocess.run([DOCKER / "make-keys", folder], check=True, timeout=60)
    assert {path.name for path in folder.iterdir()} == {
        "authorized_keys",
        "id_ed25519",
        "id_ed25519.pub",
        "known_hosts",
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    }
    assert not any(path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir()))
    before = (folder / "id_ed25519").read_bytes()
    again = subprocess.run([DOCKER / "make-keys", folder], capture_output=True, text=True, timeout=60)
    assert (again.returncode, "exists already; keys that are in use are not replaced" in again.stderr) == (2, True)
    assert (folder / "id_ed25519").read_bytes() == before
