#!/bin/bash
#SBATCH --job-name=profiling
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:10:00

# Beside the program: how busy the GPUs of each node are, every 2 s. --overlap: on the same CPUs.
srun --overlap --ntasks-per-node=1 --output=gpus-%N.csv \
    nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv --loop=2 &
watch=$!

# The program, under Python's profiler: one file for each task.
srun --kill-on-bad-exit sh -c 'exec python3 -m cProfile -o "profile-$SLURM_PROCID" work.py'

# With a GPU and Nsight Systems in its place:
# srun nsys profile --trace=cuda,nvtx,osrt --output="trace-%q{SLURM_PROCID}" python3 work.py

kill "$watch" && wait "$watch" 2>/dev/null
for profile in profile-*; do
    echo "$profile: where the time went"
    python3 -c "import pstats, sys; pstats.Stats(sys.argv[1]).sort_stats('cumulative').print_stats(8)" "$profile"
done
tail -n 2 gpus-*.csv
