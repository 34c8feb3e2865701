/* Computes pi by numerical integration: each task adds up every n-th slice, and rank 0 gets the sum. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double part(long slices, int rank, int size)
{
    double width = 1.0 / (double)slices, sum = 0.0;
    for (long at = rank; at < slices; at += size) {
        double x = ((double)at + 0.5) * width;
        sum += 4.0 / (1.0 + x * x);
    }
    return sum * width;
}

int main(int argc, char **argv)
{
    int rank, size;
    long slices = argc > 1 ? atol(argv[1]) : 10000000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    /* With a wrong --mpi each task is a world of its own, and says nothing. */
    const char *tasks = getenv("SLURM_NTASKS");
    if (tasks && atoi(tasks) != size) {
        fprintf(stderr, "Slurm started %s tasks, but MPI sees %d: srun --mpi=pmix\n", tasks, size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }

    double mine = part(slices, rank, size), pi = 0.0;
    double began = MPI_Wtime();
    MPI_Reduce(&mine, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("pi = %.12f by %d tasks, wrong by %.1e; the sum took %.1f ms\n", pi, size, fabs(pi - M_PI),
               1000 * (MPI_Wtime() - began));
    MPI_Finalize();
    return 0;
}
