"""Command `horovodrun --completion SHELL`, which generates a completion script for a shell."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.command.flags import FLAGS, Flag

SHELLS = ("bash", "zsh", "fish")
OFFERED = FLAGS


def script(shell: str, kubernetes: Sequence[str] = ()) -> str:
    """Return the completion script for a shell.

    Args:
        shell: One of SHELLS.
        kubernetes: Additional completions for `horovodrun kubernetes`.
    """
    after = " ".join([*kubernetes, *(name for flag in OFFERED for name in _spellings(flag))])
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](after)


def _spellings(flag: Flag) -> list[str]:
    return [*flag.names, *(f"--no-{name[2:]}" for name in flag.names if flag.no)]


def _summary(flag: Flag) -> str:
    """Shorten a flag's description at the first parenthesis or semicolon, because completion lists are narrow."""
    return flag.help.split(" (")[0].split(";")[0]


# Shell command that prints the names of the network interfaces. Some containers have no /sys, so it reads /proc.
_INTERFACES = "sed -n 's/^ *\\([^: ]*\\):.*/\\1/p' /proc/net/dev 2>/dev/null"

_BASH = r"""# bash completion for horovodrun:  source <(horovodrun --completion bash)
_horovodrun() {
    # bash cuts words at = and : too; they are put together again along the line.
    local line=$COMP_LINE words=() raw=() i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if [[ $i -eq 0 || $line == [[:space:]]* ]]; then
            line=${line#"${line%%[![:space:]]*}"}
            words+=("") raw+=("$i")
        fi
        words[${#words[@]}-1]+=${COMP_WORDS[i]}
        line=${line#"${COMP_WORDS[i]}"}
    done
    local last=$((${#words[@]} - 1)) flag="" values=0 command=""
    COMPREPLY=()
    if ((last > 1)) && [[ ${words[1]} == kubernetes && " ${words[*]:2:last-2} " != *" -- "* ]]; then
        _horovodrun_offer "${words[last]}" @KUBERNETES@
        return
    fi
    for ((i = 1; i < last; i++)); do
        if ((values > 0)); then
            values=$((values - 1))
            continue
        fi
        case ${words[i]} in
            --) command=$((i + 1)); break ;;
@CASES@
            -*) ;;
            *) command=$i; break ;;
        esac
    done
    local current=${words[last]}
    if [[ -n $command ]]; then
        _horovodrun_command "${raw[command]}" "$((last - command))"
    elif ((values > 0)); then
        _horovodrun_value "$flag" "$current"
    elif [[ $current == --*=* ]]; then
        _horovodrun_value "${current%%=*}" "${current#*=}"
    elif [[ $current == -* ]]; then
        _horovodrun_offer "$current" @FLAGS@
    else
        _horovodrun_command "${raw[last]}" 0
        if ((last == 1)) && [[ kubernetes == "$current"* ]]; then COMPREPLY+=(kubernetes); fi
    fi
}

# Offers the words that begin with $1, quoted. `compgen -W` would expand them, and a name of a host or of a network
# interface may look like a command.
_horovodrun_offer() {
    local current=$1 word
    shift
    for word; do
        if [[ $word == "$current"* ]]; then
            printf -v word %q "$word"
            COMPREPLY+=("$word")
        fi
    done
}

_horovodrun_value() {
    local found=()
    case $1 in
@VALUES@
    esac
}

_horovodrun_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (($2 == 0)); then
        mapfile -t COMPREPLY < <(compgen -c -f -- "${COMP_WORDS[COMP_CWORD]}")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    fi
}

complete -F _horovodrun horovodrun
"""
_BASH_VALUES = {
    "file": 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$2")',
    "directory": 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$2")',
    "host": '[[ $2 == *[:,]* ]] || mapfile -t found < <(compgen -A hostname -- "$2"); '
    '_horovodrun_offer "$2" "${found[@]}"',
    "interface": f'mapfile -t found < <({_INTERFACES}); _horovodrun_offer "$2" "${{found[@]}}"',
}


def _bash(kubernetes: str) -> str:
    cases = []
    values = []
    for flag in FLAGS:
        if flag.value is None:
            continue
        names = "|".join(flag.names)
        cases.append(f"            {names}) flag=${{words[i]}} values={flag.nargs} ;;")
        if flag.value.choices:
            reply = f'_horovodrun_offer "$2" {" ".join(flag.value.choices)}'
        elif flag.value.completes:
            reply = _BASH_VALUES[flag.value.completes]
        else:
            continue
        values.append(f"        {names}) {reply} ;;")
    names = " ".join(["-h", "--help", *(name for flag in OFFERED for name in _spellings(flag))])
    text = _BASH.replace("@CASES@", "\n".join(cases)).replace("@VALUES@", "\n".join(values))
    return text.replace("@FLAGS@", names).replace("@KUBERNETES@", kubernetes)


_ZSH_VALUES = {
    "file": "_files",
    "directory": "_files -/",
    "host": "_hosts",
    "interface": "_net_interfaces",
}


def _zsh(kubernetes: str) -> str:
    lines = [
        "#compdef horovodrun",
        "# zsh completion for horovodrun: after compinit, source <(horovodrun --completion zsh), or put the output",
        "# into a file named _horovodrun in a directory of $fpath",
        "_horovodrun() {",
        "    if (( CURRENT > 2 )) && [[ $words[2] == kubernetes ]] && (( ! $words[(I)--] )); then",
        f"        compadd -- {kubernetes}",
        "        return",
        "    fi",
        "    (( CURRENT == 2 )) && compadd kubernetes",
        "    _arguments -S \\",
        "        '(- *)'{-h,--help}'[show this help and exit]' \\",
    ]
    for flag in OFFERED:
        for name in _spellings(flag):
            lines.append(f"        {_zsh_row(flag, name)} \\")
    lines += [
        "        '(-):command: _command_names -e' \\",
        "        '*::arguments: _normal'",
        "}",
        'if [[ ${funcstack[1]} == _horovodrun ]]; then _horovodrun "$@"; else compdef _horovodrun horovodrun; fi',
    ]
    return "\n".join(lines) + "\n"


def _zsh_row(flag: Flag, name: str) -> str:
    others = {other for row in FLAGS if row.exclusive and row.exclusive == flag.exclusive for other in row.names}
    apart = "" if flag.repeat else f"({' '.join(sorted(others | set(_spellings(flag))))})"
    star = "*" if flag.repeat else ""
    equals = "=" if flag.value is not None and flag.nargs == 1 and name.startswith("--") else ""
    row = f"{apart}{star}{name}{equals}[{_zsh_escape(_summary(flag))}]"
    if flag.value is not None:
        action = (
            f"({' '.join(flag.value.choices)})" if flag.value.choices else _ZSH_VALUES.get(flag.value.completes, " ")
        )
        row += f":{_zsh_escape(flag.value.metavar)}:{action}" * flag.nargs
    return "'" + row.replace("'", "'\\''") + "'"


def _zsh_escape(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, "\\" + special)
    return text


_FISH_VALUES = {
    "file": "-r -F",
    "directory": "-x -a '(__fish_complete_directories)'",
    "host": "-x -a '(__fish_print_hostnames)'",
    "interface": f"-x -a '({_INTERFACES.replace(chr(39), chr(34))})'",
}


def _fish(kubernetes: str) -> str:
    """Return the completion script for fish. It skips flags and their values, like `command_line.split`."""
    counts = " ".join(f"{name}:{flag.nargs}" for flag in FLAGS if flag.value for name in flag.names)
    lines = [
        "# fish completion for horovodrun: horovodrun --completion fish > ~/.config/fish/completions/horovodrun.fish",
        "function __horovodrun_at_flags --description 'has the command not begun yet?'",
        "    set -l words (commandline -opc)[2..-1]",
        "    while set -q words[1]",
        "        string match -q -- '-*' $words[1]; or return 1",
        "        test $words[1] = --; and return 1",
        "        set -l skip 1",
        f"        for count in {counts}",
        "            set -l parts (string split : -- $count)",
        "            test $words[1] = $parts[1]; and set skip (math 1 + $parts[2])",
        "        end",
        "        set words $words[(math $skip + 1)..-1]",
        "    end",
        "    return 0",
        "end",
        "function __horovodrun_at_kubernetes --description 'is it a job on a cluster, without its command yet?'",
        "    set -l words (commandline -opc)",
        "    test (count $words) -ge 2; and test $words[2] = kubernetes; and not contains -- -- $words",
        "end",
        f"complete -c horovodrun -n __horovodrun_at_kubernetes -x -a '{kubernetes}'",
        "complete -c horovodrun -n 'test (count (commandline -opc)) -eq 1' -a kubernetes -d 'run on a cluster'",
        "complete -c horovodrun -x -a '(__fish_complete_subcommand)'",
        "complete -c horovodrun -n __horovodrun_at_flags -s h -l help -d 'show this help and exit'",
    ]
    for flag in OFFERED:
        for name in _spellings(flag):
            lines.append(_fish_row(flag, name))
    return "\n".join(lines) + "\n"


def _fish_row(flag: Flag, name: str) -> str:
    kind = "-l" if name.startswith("--") else "-s" if len(name) == 2 else "-o"
    row = f"complete -c horovodrun -n __horovodrun_at_flags {kind} {name.lstrip('-')}"
    if flag.value is not None:
        if flag.value.choices:
            row += f" -x -a '{' '.join(flag.value.choices)}'"
        else:
            row += " " + _FISH_VALUES.get(flag.value.completes, "-x")
    summary = _summary(flag).replace("\\", "\\\\").replace("'", "\\'")
    return f"{row} -d '{summary}'"
