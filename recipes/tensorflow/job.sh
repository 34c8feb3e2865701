#!/bin/bash
#SBATCH --job-name=tensorflow
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
#SBATCH --requeue

mkdir -p checkpoints
. ~/env-tf/bin/activate
srun --kill-on-bad-exit python3 train.py
