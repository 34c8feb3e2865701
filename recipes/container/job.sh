#!/bin/bash
#SBATCH --job-name=container
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:10:00

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

# Each node unpacks the image to its own disk, once.
bundle=/tmp/$USER-python
srun --ntasks-per-node=1 ./unpack.sh images:python "$bundle" || exit

# The program starts in your home: its path is absolute.
srun --kill-on-bad-exit --container="$bundle" python3 "$PWD/together.py"
