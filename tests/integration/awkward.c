/* Programs that call connect and getpeername where a library must be careful. awkward MODE ADDRESS PORT: the peer is an
 * echo server on another machine. Exits with 0 when all was as without the library. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { INHERITED = 9 };

static struct sockaddr_in there;

static struct sockaddr_in named(const char *ip, int port) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  if (inet_pton(AF_INET, ip, &in.sin_addr) != 1) exit(2);
  return in;
}

static bool is_there(int fd) {
  struct sockaddr_in in;
  socklen_t len = sizeof in;
  return getpeername(fd, (struct sockaddr *)&in, &len) == 0 && in.sin_addr.s_addr == there.sin_addr.s_addr;
}

static bool dial(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  bool ok = connect(fd, (struct sockaddr *)&there, sizeof there) == 0 && is_there(fd);
  close(fd);
  return ok;
}

static volatile sig_atomic_t handled, failed_in_handler;

static void handler(int number) {
  (void)number;
  int saved = errno;
  handled++;
  if (!dial()) failed_in_handler++;
  errno = saved;
}

/* A handler connects while the main thread is inside connect or getpeername. */
static bool in_signal_handlers(void) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  struct itimerval often = {.it_interval = {.tv_usec = 7000}, .it_value = {.tv_usec = 3000}}, never = {0};
  bool ok = true;
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < 1000 && (i < 50 || handled < 20); i++) ok = dial() && ok;
  setitimer(ITIMER_REAL, &never, NULL);
  return ok && handled >= 20 && failed_in_handler == 0;
}

static void *dials(void *result) {
  for (int i = 0; i < 10; i++) {
    if (!dial()) *(bool *)result = false;
  }
  return NULL;
}

/* Threads with the smallest stack. */
static bool on_small_stacks(void) {
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  bool ok[THREADS];
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, 16384) != 0) return false;
  for (int i = 0; i < THREADS; i++) {
    ok[i] = true;
    if (pthread_create(&threads[i], &attributes, dials, &ok[i]) != 0) return false;
  }
  bool all = true;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    all = all && ok[i];
  }
  return all;
}

static bool ends_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/* A child of vfork connects, in the memory of its parent. */
static bool in_vfork(void) {
  pid_t child = vfork();
  if (child == 0) _exit(dial() ? 0 : 1);
  return ends_well(child) && dial();
}

/* A program that such a child executes knows the peer of a socket that it inherits. */
static bool after_exec(char **argv) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr *)&there, sizeof there) != 0 || dup2(fd, INHERITED) != INHERITED) return false;
  pid_t child = vfork();
  if (child == 0) {
    execl("/proc/self/exe", argv[0], "inherited", argv[2], argv[3], (char *)NULL);
    _exit(1);
  }
  return ends_well(child) && is_there(INHERITED);
}

/* Without a free descriptor, and once there is one. */
static bool without_descriptors(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), last = fd, next;
  while ((next = dup(2)) >= 0) last = next;
  bool refused = connect(fd, (struct sockaddr *)&there, sizeof there) == -1 && errno == EMFILE;
  close(last);
  return refused && connect(fd, (struct sockaddr *)&there, sizeof there) == 0 && is_there(fd);
}

/* From now on every other system call kills the process. */
static bool allow_only(const int *calls, int n) {
  struct sock_filter code[64];
  int at = 0;
  code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < n; i++) {
    code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog program = {.len = (unsigned short)at, .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* What does not concern the tailnet makes the system calls that it names, and no others. */
static bool under_a_filter(void) {
  static const int calls[] = {
      SYS_bind, SYS_connect, SYS_accept, SYS_sendto, SYS_getsockopt, SYS_getsockname, SYS_exit_group,
  };
  int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  int datagrams = socket(AF_INET, SOCK_DGRAM, 0), error = -1;
  struct sockaddr_in local = named("127.0.0.1", 0), any = named("0.0.0.0", 0);
  socklen_t len = sizeof local, error_len = sizeof error;
  if (bind(server, (struct sockaddr *)&local, len) != 0 || listen(server, 1) != 0) return false;
  if (getsockname(server, (struct sockaddr *)&local, &len) != 0) return false;
  if (!allow_only(calls, sizeof calls / sizeof *calls)) return false;
  bool ok = bind(datagrams, (struct sockaddr *)&any, sizeof any) == 0;
  ok = getsockname(datagrams, (struct sockaddr *)&any, &len) == 0 && any.sin_port != 0 && ok;
  ok = sendto(datagrams, "", 1, 0, (struct sockaddr *)&local, sizeof local) == 1 && ok;
  ok = connect(client, (struct sockaddr *)&local, sizeof local) == 0 && ok;
  ok = getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &error_len) == 0 && error == 0 && ok;
  ok = accept(server, NULL, NULL) >= 0 && ok;
  _exit(ok ? 0 : 1);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  there = named(argv[2], atoi(argv[3]));
  bool ok = false;
  if (strcmp(argv[1], "handlers") == 0) ok = in_signal_handlers();
  if (strcmp(argv[1], "stacks") == 0) ok = on_small_stacks();
  if (strcmp(argv[1], "vfork") == 0) ok = in_vfork();
  if (strcmp(argv[1], "exec") == 0) ok = after_exec(argv);
  if (strcmp(argv[1], "inherited") == 0) ok = is_there(INHERITED);
  if (strcmp(argv[1], "descriptors") == 0) ok = without_descriptors();
  if (strcmp(argv[1], "filter") == 0) ok = under_a_filter();
  return ok ? 0 : 1;
}
