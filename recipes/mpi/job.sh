#!/bin/bash
#SBATCH --job-name=mpi
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=0:10:00

# Open MPI takes the tailnet's interface by itself: every job has OMPI_MCA_btl_tcp_if_include.
[ ! -e ~/env ] || . ~/env/bin/activate
mpicc -O2 -o pi pi.c -lm

# --mpi=pmix: with another kind each task is a world of its own.
srun --mpi=pmix ./pi
srun --mpi=pmix python3 ring.py
