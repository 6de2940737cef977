#!/bin/bash
#SBATCH --job-name=tnctl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#
#     sbatch docs/cluster/ray_slurm.sh conf=deepfm output=/shared/run
#
# A Ray of this job's nodes, and a worker for each node. All tasks run `ray symmetric-run`, which
# starts Ray on its node; on the first node it runs the command, and ends Ray with it. On nodes that
# other jobs use too, it would end their Ray as well: hence --exclusive.
#
# The command starts lost workers again. When it ends itself, with its node or at the time limit,
# the same sbatch resumes from the last checkpoint.
set -u

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# The secret of this job's Ray, which only this user can read, in a folder that all nodes share.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/.tnctl-ray-token-$SLURM_JOB_ID
rm -f "$RAY_AUTH_TOKEN_PATH"
(umask 077 && openssl rand -hex 32 > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
# A node is taken for dead after some 6 seconds instead of 15; workers get the usual priority.
export RAY_health_check_period_ms=2000 RAY_health_check_failure_threshold=3 RAY_worker_niceness=0

srun --kill-on-bad-exit=0 ray symmetric-run --address "$head:6379" \
    --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" -- \
    env RAY_ADDRESS=auto tnctl train cluster=ray cluster.workers="$SLURM_JOB_NUM_NODES" "$@"
