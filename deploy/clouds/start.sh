#!/usr/bin/env bash
# Command of all containers of a training job on SageMaker (with a custom image) or on Vertex AI, where all containers
# have the same command:
#
#     start.sh -np 16 python train.py
#
# On the job's first machine, it waits for the others and runs horovodrun with these arguments, which finds the machines
# by itself. On the others, it runs an ssh server until the job ends. With one machine, it only runs horovodrun.
#
# Variables:
#   SSH_PRIVATE_KEY  key for this job, as written by `ssh-keygen -t ed25519 -N "" -f key`; without it, the image's ~/.ssh
#                    must have a key that all machines accept
#   SSH_PORT         port of the ssh servers; default: the service's (Vertex AI: 2222), or 22
#   SSHD             the ssh server; default: /usr/sbin/sshd
#   START_WAIT       seconds to wait for all machines; default: 600
set -euo pipefail

read -r -a sshd <<< "${SSHD:-/usr/sbin/sshd}"
mine=$HOME/.horovod-start.pid

# One of: alone | other PORT | first PORT NAME NAME ...
role=$(python - <<'PY'
import sys

sys.path[:] = [p for p in sys.path if p]  # modules in the current directory must not be imported
import os

from horovod.runner.command.cli import machines_of_service

found = machines_of_service(os.environ)
if found is None:
    print("alone")
elif found.here == found.names[0]:
    print("first", found.port or 22, *found.names[1:])
else:
    print("other", found.port or 22)
PY
)
read -r -a role <<< "$role"

if [[ ${role[0]} == alone ]]; then
    unset SSH_PRIVATE_KEY
    exec horovodrun "$@"
fi
port=${SSH_PORT:-${role[1]}}

if [[ -n ${SSH_PRIVATE_KEY:-} ]]; then
    mkdir -p -m 700 ~/.ssh
    (umask 077 && printf '%s\n' "$SSH_PRIVATE_KEY" > ~/.ssh/id_ed25519 && ssh-keygen -y -f ~/.ssh/id_ed25519 >> ~/.ssh/authorized_keys)
fi
unset SSH_PRIVATE_KEY

if [[ ${role[0]} == other ]]; then
    [[ -n ${SSHD:-} ]] || { ssh-keygen -A > /dev/null && mkdir -p /run/sshd; }
    "${sshd[@]}" -D -e -p "$port" &
    server=$!
    trap 'kill "$server" 2> /dev/null || true; rm -f "$mine"; exit 0' USR1
    trap : TERM INT # all machines get the warning; the first one stops the ranks here, too, for which it needs ssh
    echo $$ > "$mine"
    while kill -0 "$server" 2> /dev/null; do
        wait "$server" || true
    done
    echo "start.sh: the ssh server has ended by itself" >&2
    exit 1
fi

to() { ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=10 -p "$port" "$@"; }

deadline=$((SECONDS + ${START_WAIT:-600}))
for host in "${role[@]:2}"; do
    until said=$(to "$host" true 2>&1); do
        if ((SECONDS > deadline)); then
            echo "start.sh: $host cannot be reached by ssh after ${START_WAIT:-600} s (START_WAIT): $said" >&2
            exit 1
        fi
        sleep 1
    done
done

horovodrun -p "$port" "$@" &
job=$!
trap 'kill -TERM "$job" 2> /dev/null || true' TERM INT
code=0
while true; do
    wait "$job" && code=0 || code=$?
    kill -0 "$job" 2> /dev/null || break  # otherwise a signal, which was passed on, has interrupted the wait
done
for host in "${role[@]:2}"; do
    to "$host" 'kill -USR1 $(cat ~/.horovod-start.pid)' || true
done
exit "$code"
