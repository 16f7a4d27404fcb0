"""Completion, tested in the shells themselves."""

import shutil
import subprocess

import pytest

from horovod.runner.command import completion
from horovod.runner.command.flags import FLAGS

# Calls the function as readline does, with words split at COMP_WORDBREAKS as in bash, and prints its answers.
ASK = """
COMP_LINE=$1 COMP_POINT=${#1}
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_horovodrun
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    paths = {}
    for shell in completion.SHELLS:
        paths[shell] = folder / f"horovodrun.{shell}"
        paths[shell].write_text(completion.script(shell, ["attach", "--image", "--image-pull-policy"]))
    return paths


def ask_bash(path, argv, cwd):
    line = "".join(argv)
    typed = [argument for argument in argv if argument != " "]
    if argv[-1] == " ":
        typed.append("")
    code = f"source {path}\n{ASK}"
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", code, "bash", line, *typed],
        cwd=cwd, stdout=subprocess.PIPE, check=True, timeout=60, text=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--log-l"], {"--log-level"}),
        (["--no-auto"], {"--no-autotune", "--no-autotune-reuse"}),
        (["-np", " ", "2", " ", "--completi"], {"--completion"}),
        (["-np", " "], set()),
        (["--log-level", " ", "D"], {"DEBUG"}),
        (["--log-level", "=", "W"], {"WARNING"}),
        (["--log-level", "="], {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"}),
        (["--completion", " "], {"bash", "zsh", "fish"}),
        (["-H", " ", "a", ":", "2,b", ":", "2", " ", "--verb"], {"--verbose"}),
        (["--blacklist-cooldown-range", " ", "1", " ", "2", " ", "--verb"], {"--verbose"}),
        (["--env-allow", "=", "A,B", " ", "--verb"], {"--verbose"}),
        (["--mpi-args", "=", '"-x y"', " ", "--verb"], {"--verbose"}),
        (["--config-file", " ", "file"], {"file one", "file2.yaml"}),
        (["--output-filename", " ", "d"], {"directory"}),
        (["-np", " ", "2", " ", "file2"], {"file2.yaml"}),
        (["-np", " ", "2", " ", "true", " ", "--verb"], set()),
        (["-np", " ", "2", " ", "cat", " ", "file2"], {"file2.yaml"}),
        (["-np", " ", "2", " ", "--", " ", "file2"], {"file2.yaml"}),
        (["--host-discovery"], {"--host-discovery-script"}),
        (["kubern"], {"kubernetes"}),
        (["kubernetes", " ", "--imag"], {"--image", "--image-pull-policy"}),
        (["kubernetes", " ", "-np", " ", "2", " ", "--verb"], {"--verbose"}),
        (["kubernetes", " ", "att"], {"attach"}),
        (["kubernetes", " ", "--image", " ", "i", " ", "--", " ", "file2"], {"file2.yaml"}),
    ],
)
def test_bash(scripts, tmp_path, argv, expected):
    (tmp_path / "file one").write_text("")
    (tmp_path / "file2.yaml").write_text("")
    (tmp_path / "directory").mkdir()
    got = ask_bash(scripts["bash"], ["horovodrun", " ", *argv], tmp_path)
    assert set(got) == {part for line in expected for part in line.split()}


def test_names_that_look_like_commands_are_not_run(scripts, tmp_path):
    """An administrator or container runtime may choose such interface names; they are offered quoted."""
    devices = tmp_path / "dev"
    devices.write_text("Inter-|   Receive\n $(id>ran): 0 0\n  `id>ran`: 0\n    l*: 0\n    lo: 0\n")
    (tmp_path / "lots").touch()
    script = tmp_path / "script"
    script.write_text(scripts["bash"].read_text().replace("/proc/net/dev", str(devices)))
    for flag in ("--network-interface", "--network-interfaces"):
        got = ask_bash(script, ["horovodrun", " ", flag, " ", " "], tmp_path)
        assert set(got) == {r"\$\(id\>ran\)", r"\`id\>ran\`", r"l\*", "lo"}
        assert ask_bash(script, ["horovodrun", " ", flag, " ", "lo"], tmp_path) == ["lo"]
    assert not (tmp_path / "ran").exists()
    assert "compgen -W" not in scripts["bash"].read_text().replace("`compgen -W` would", "")


def test_bash_completes_every_flag(scripts, tmp_path):
    offered = set(ask_bash(scripts["bash"], ["horovodrun", " ", "-"], tmp_path))
    for flag in FLAGS:
        for name in flag.names:
            assert name in offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_syntax(scripts, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(scripts[shell])], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("horovodrun --log-l", {"--log-level"}),
        ("horovodrun -np 2 --log-level W", {"WARNING"}),
        ("horovodrun -np 2 --log-level=W", {"--log-level=WARNING"}),
        ("horovodrun -np 2 cat --log-l", set()),
        ("horovodrun -np 2 --completion ", {"bash", "zsh", "fish"}),
        ("horovodrun --network-interfaces l", {"lo"}),
        ("horovodrun --prefix-t", set()),
        ("horovodrun -hostf", {"-hostfile"}),
        ("horovodrun kubern", {"kubernetes"}),
        ("horovodrun kubernetes --image-", {"--image-pull-policy"}),
        ("horovodrun kubernetes att", {"attach"}),
    ],
)
def test_fish(scripts, tmp_path, line, expected):
    code = f"source {scripts['fish']}; complete -C '{line}'"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], stdout=subprocess.PIPE, check=True, timeout=60, text=True, env=environment
    )
    got = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert got == expected or (expected == {"lo"} and "lo" in got)


def test_zsh_gets_exclusions_and_value_types(scripts):
    """Only the generated script is checked, because zsh completes at a terminal only."""
    rows = scripts["zsh"].read_text().splitlines()
    for row in (
        "'(--num-proc -n -np)-np[number of processes]:N: '",
        "'(--num-proc -n -np)--num-proc=[number of processes]:N: '",
        "'(--autotune --no-autotune)--no-autotune[search for faster settings while training]'",
        "'(--config-file)--config-file=[YAML file with settings]:FILE:_files'",
        "'*--network-interface=[a network interface to use]:",
        "'(--log-level)--log-level=[minimum severity of messages that are logged on stderr]:LEVEL:(TRACE DEBUG ",
        "with HOROVOD_* and what every program needs]:PATTERN,...: '",
        "do not pass from the launcher'\\''s environment",
    ):
        assert sum(row in line for line in rows) == 1, row
