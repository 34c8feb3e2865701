// A wrong wall clock for one machine: preloaded into every program by /etc/ld.so.preload, it adds the seconds that
// /etc/clock-offset holds to CLOCK_REALTIME. Monotonic clocks stay right, as on real hardware. Programs that do not use
// the C library (static Go) are out of reach.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s;

__attribute__((constructor)) static void load(void) {
  char text[32] = {0};
  int fd = open("/etc/clock-offset", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (read(fd, text, sizeof text - 1) > 0) offset_s = strtol(text, NULL, 10);
  close(fd);
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI; }

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, id, now);
  if (!failed && is_wall(id)) now->tv_sec += offset_s;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

// Deadlines on the wall clock go back to the kernel, which does not share our error. Those of a monotonic clock count
// from boot and are small.
static struct timespec true_deadline(const struct timespec *deadline) {
  struct timespec adjusted = *deadline;
  if (adjusted.tv_sec > 1000000000 + labs(offset_s)) adjusted.tv_sec -= offset_s;
  return adjusted;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec adjusted = true_deadline(deadline);
  if (!real) {
    // Unversioned look-up finds the oldest ABI, which has another layout of pthread_cond_t.
    real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  }
  return real(cond, mutex, &adjusted);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline) {
  static int (*real)(sem_t *, const struct timespec *);
  struct timespec adjusted = true_deadline(deadline);
  if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
  return real(sem, &adjusted);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline) {
  static int (*real)(pthread_mutex_t *, const struct timespec *);
  struct timespec adjusted = true_deadline(deadline);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
  return real(mutex, &adjusted);
}
