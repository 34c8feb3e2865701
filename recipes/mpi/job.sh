#!/bin/bash
#SBATCH --job-name=mpi
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=0:10:00

# Open MPI takes the tailnet's interface by itself: every job has OMPI_MCA_btl_tcp_if_include. Each address there is a
# network of its own: "weighted" lets Open MPI connect them, without a warning on virtual machines, and on pods at all.
# Pods reach the tailnet by IPv4 only.
export OMPI_MCA_reachable=weighted OMPI_MCA_btl_tcp_disable_family=6
[ ! -e ~/env ] || . ~/env/bin/activate
mpicc -O2 -o pi pi.c -lm

# --mpi=pmix: with another kind each task is rank 0 of 1.
srun --mpi=pmix ./pi
srun --mpi=pmix python3 ring.py
