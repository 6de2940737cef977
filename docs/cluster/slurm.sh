#!/bin/bash
#SBATCH --job-name=tnctl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300
#
#     sbatch docs/cluster/slurm.sh conf=deepfm output=/shared/run
#
# One worker for each task. 300 s before the time limit all receive SIGTERM: the run is saved, and
# the same sbatch resumes it. When workers are lost, a step with all of them is started again.
set -u

# The secret of this job, which only this user can read, in a folder that all nodes share.
export TNCTL_TOKEN_FILE=$PWD/.tnctl-token-$SLURM_JOB_ID
rm -f "$TNCTL_TOKEN_FILE"
(umask 077 && openssl rand -hex 32 > "$TNCTL_TOKEN_FILE")
trap 'rm -f "$TNCTL_TOKEN_FILE"' EXIT

for attempt in 1 2 3 4 5 6; do
    srun --kill-on-bad-exit=0 tnctl train cluster=env cluster.restarts=0 "$@"
    code=$?
    # 75: workers were lost; 137 and 139: the command itself was killed.
    [[ $code == 75 || $code == 137 || $code == 139 ]] || break
done
exit $code
