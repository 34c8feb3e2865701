/* close() may wait: for a socket with SO_LINGER whose bytes nobody takes, for as long as its program likes. The same is
 * true of a descriptor that lies in the queue of a unix socket that is closed. Only a process that exits does not wait
 * (PF_EXITING in inet_release, net/ipv4/af_inet.c). So a child takes copies of what is to be closed: then it is not the
 * last that meshnetd closes, and the child exits. */
#include "close_later.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop.h"

enum { LATER_MAX = 1024, LATER_MS = 20 };

static int later[LATER_MAX];
static int count;
static struct timer due;
/* One byte ends one child. */
static int ends[2] = {-1, -1};

static void close_all(void) {
  for (int i = 0; i < count; i++) close(later[i]);
  count = 0;
}

/* The copies: they end when this process does. */
static void hold_copies(void) {
  char byte;
  close(ends[1]);
  while (read(ends[0], &byte, 1) < 0 && errno == EINTR) continue;
  _exit(0);
}

static void close_later_all(void) {
  loop_cancel(&due);
  if (count == 0) return;
  pid_t child = fork();
  if (child == 0) hold_copies();
  /* No room for a process: later, unless there is no more room for descriptors. */
  if (child < 0 && count < LATER_MAX) return loop_after(&due, LATER_MS);
  if (child < 0) say_often("meshnetd: fork: %s", strerror(errno));
  close_all();
  if (child > 0 && write(ends[1], "", 1) != 1) kill(child, SIGKILL);
}

static void at_last(struct timer *timer) {
  (void)timer;
  close_later_all();
}

void close_later_start(void) {
  signal(SIGCHLD, SIG_IGN); /* no zombies */
  due.fire = at_last;
  if (pipe2(ends, O_CLOEXEC) == 0) return;
  say("meshnetd: pipe: %s", strerror(errno));
  exit(1);
}

void close_later(int fd) {
  if (fd < 0) return;
  if (count == LATER_MAX) close_later_all();
  later[count++] = fd;
  if (!due.link) loop_after(&due, LATER_MS);
}

void close_socket(int fd) {
  struct linger linger = {0};
  socklen_t len = sizeof linger;
  if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) != 0 || (linger.l_onoff && linger.l_linger > 0)) {
    close_later(fd);
  } else {
    close(fd);
  }
}
