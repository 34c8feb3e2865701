#!/bin/bash
#SBATCH --job-name=ddp-torchrun
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=1:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

mkdir -p checkpoints && touch checkpoints/started
[ ! -e ~/env ] || . ~/env/bin/activate
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
endpoint=$first:$((20000 + SLURM_JOB_ID % 10000))
export endpoint

# One torchrun for each node; it starts a process for each GPU.
srun --kill-on-bad-exit sh -c '
    [ "$SLURM_NODEID" = 0 ] && host=1 || host=0
    exec torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" --rdzv-id="$SLURM_JOB_ID" \
        --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-conf=is_host=$host \
        --local-addr="$SLURMD_NODENAME" train.py "$@"' - "$@" && exit

# A lost node may end the others first. What came as far as a checkpoint is worth another try.
[ ! checkpoints/newest.pt -nt checkpoints/started ] || scontrol requeue "$SLURM_JOB_ID"
exit 1
