#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=1:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

mkdir -p checkpoints && touch checkpoints/started
[ ! -e ~/env ] || . ~/env/bin/activate
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export USE_LIBUV=0 # Debian's PyTorch has no libuv

# One task for each GPU. Each learns its rank from Slurm.
srun --kill-on-bad-exit sh -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    exec python3 train.py "$@"' - "$@" && exit

# A lost node may end the others first. What came as far as a checkpoint is worth another try.
[ ! checkpoints/newest.pt -nt checkpoints/started ] || scontrol requeue "$SLURM_JOB_ID"
exit 1
