#!/bin/bash
#SBATCH --job-name=was-horovod
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00

[ ! -e ~/env ] || . ~/env/bin/activate
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export USE_LIBUV=0 # Debian's PyTorch has no libuv

srun --kill-on-bad-exit python3 train_ddp.py
