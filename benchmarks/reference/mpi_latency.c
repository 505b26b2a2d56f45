/* What native_latency measures, with MPI_Allreduce: mpi_latency BYTES SECONDS, started by mpirun on two ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BURST = 100, WARMUP = 20 };

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double microseconds_of_burst(float *values, int count) {
  double begin = MPI_Wtime();
  for (int i = 0; i < BURST; ++i) MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return (MPI_Wtime() - begin) * 1e6 / BURST;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, count = argc > 1 ? atoi(argv[1]) / (int)sizeof(float) : 1;
  double seconds = argc > 2 ? atof(argv[2]) : 0.2, warmup[WARMUP];
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (count < 1) count = 1;
  float *values = calloc((size_t)count, sizeof(float));
  for (int i = 0; i < WARMUP; ++i) warmup[i] = microseconds_of_burst(values, count);
  qsort(warmup, WARMUP, sizeof(double), by_value);
  int bursts = (int)(seconds * 1e6 / (warmup[WARMUP / 2] * BURST));
  if (bursts < 5) bursts = 5;
  MPI_Bcast(&bursts, 1, MPI_INT, 0, MPI_COMM_WORLD);
  double *took = calloc((size_t)bursts, sizeof(double));
  for (int i = 0; i < bursts; ++i) took[i] = microseconds_of_burst(values, count);
  qsort(took, (size_t)bursts, sizeof(double), by_value);
  if (rank == 0) printf("%.3f\n", took[bursts / 2]);
  free(took);
  free(values);
  return MPI_Finalize();
}
