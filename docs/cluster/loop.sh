#!/bin/bash
# Starts the workers of one run on this machine, each by a command of its own:
#
#     docs/cluster/loop.sh WORKERS conf=deepfm output=run ...
#
# A command that is lost (exit code 75, or killed by a signal) is started again. Ctrl-C or SIGTERM
# lets worker 0 save and ends all; the same line resumes.
set -u
workers=$1
shift

if [[ -z ${TNCTL_TOKEN_FILE-} ]]; then
    # The secret of this run, which only this user can read.
    folder=$(mktemp -d)
    trap 'rm -r "$folder"' EXIT
    export TNCTL_TOKEN_FILE=$folder/token
    (umask 077 && openssl rand -hex 32 > "$TNCTL_TOKEN_FILE")
fi
export TNCTL_WORKERS=$workers TNCTL_ADDRESS=${TNCTL_ADDRESS:-127.0.0.1:29400}

# Runs one worker until it has ended for good. A signal is passed to its command, which is waited for.
worker() {
    local code attempt command=
    stopping=
    trap '' INT # a terminal sends Ctrl-C to all; the loop makes it one signal
    trap 'stopping=1; [[ -z $command ]] || kill -TERM "$command" 2>/dev/null' TERM
    for attempt in 1 2 3 4 5 6; do
        TNCTL_RANK=$1 tnctl train cluster=env "${@:2}" &
        command=$!
        [[ -z $stopping ]] || kill -TERM "$command" 2>/dev/null
        wait "$command"
        code=$?
        # A signal interrupts `wait`.
        while kill -0 "$command" 2>/dev/null; do
            wait "$command"
            code=$?
        done
        [[ -z $stopping && ($code == 75 || $code == 137 || $code == 139) ]] || break
    done
    return $code
}

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' INT TERM
for ((rank = 0; rank < workers; rank++)); do
    worker "$rank" "$@" &
    pids+=($!)
done
worst=0
for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        code=$?
    done
    ((code > worst)) && worst=$code
done
exit $worst
