#!/bin/bash
#SBATCH --job-name=horovod
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00

# The image has Debian 12 with Horovod: see the README. unpack.sh is that of the recipe for containers.
bundle=/tmp/$USER-horovod
srun --ntasks-per-node=1 ~/container/unpack.sh images:horovod "$bundle" || exit

# Horovod without MPI: its workers meet at rank 0's node, at a server of Horovod's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
port=$((20000 + SLURM_JOB_ID % 10000))
export HOROVOD_GLOO_IFACE=tailscale0 HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo
export HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT=$port
HOROVOD_GLOO_RENDEZVOUS_ADDR=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }')

srun --kill-on-bad-exit --container="$bundle" sh -c '
    export HOROVOD_RANK=$SLURM_PROCID HOROVOD_SIZE=$SLURM_NTASKS HOROVOD_LOCAL_RANK=$SLURM_LOCALID
    export HOROVOD_LOCAL_SIZE=1 HOROVOD_CROSS_RANK=$SLURM_NODEID HOROVOD_CROSS_SIZE=$SLURM_NNODES
    export HOROVOD_HOSTNAME=$SLURMD_NODENAME
    exec python3 "$0"' "$PWD/train.py"
