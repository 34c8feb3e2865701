#!/bin/bash
#SBATCH --job-name=ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=0:10:00

. ~/env-ray/bin/activate
export RAY_ADDRESS RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID RAY_USAGE_STATS_ENABLED=0
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
port=$((20000 + SLURM_JOB_ID % 10000))

# The address of each node on the tailnet, which the others reach: by its name.
head_ip=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }')
RAY_ADDRESS=$head_ip:$port

start='exec ray start --block --disable-usage-stats --num-cpus="${SLURM_CPUS_ON_NODE:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \
    --node-ip-address="$(getent ahostsv4 "$SLURMD_NODENAME" | awk "NR == 1 { print \$1 }")"'

# --overlap: the steps share the nodes with the driver below. Each ends with the job.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" sh -c "$start --head --port=$port --include-dashboard=false" \
    >ray-head.log 2>&1 &
until ray status >/dev/null 2>&1; do sleep 1; done
others=$((SLURM_NNODES - 1))
[ "$others" = 0 ] || srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
    sh -c "$start --address=$RAY_ADDRESS" >ray-workers.log 2>&1 &

python3 train.py
