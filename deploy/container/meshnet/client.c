#include "client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Nothing here may call the functions that the library replaces: all system calls are direct. */

/* For the whole of a dial that is not held by the kernel: longer than tailscaled's own limit of 5 s. */
enum { DIAL_MS = 15000 };

static long long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Wait until a descriptor is ready, whatever signals come; false at the end of the time. */
static bool wait_for(int fd, short events, long long end_ms) {
  for (;;) {
    long long left = end_ms - now_ms();
    if (left <= 0) return false;
    struct timespec t = {.tv_sec = (time_t)(left / 1000), .tv_nsec = (long)(left % 1000) * 1000000};
    struct pollfd p = {.fd = fd, .events = events};
    long n = syscall(SYS_ppoll, &p, 1, &t, NULL, 0);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

/* A connection to meshnetd; -1 with errno. */
static int dial(long long end_ms) {
  int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  struct sockaddr_un where = {.sun_family = AF_UNIX, .sun_path = MN_DIRECTORY "/" MN_SOCKET_NAME};
  while (syscall(SYS_connect, fd, &where, sizeof where) != 0) {
    /* EAGAIN: meshnetd's queue is full. A unix socket cannot be polled for that. */
    struct timespec pause = {.tv_nsec = 2000000};
    if (errno != EINTR && (errno != EAGAIN || now_ms() >= end_ms)) {
      int why = errno;
      syscall(SYS_close, fd);
      errno = why;
      return -1;
    }
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
  }
  return fd;
}

static bool send_request(int fd, const struct mn_request *request, int passed) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec part = {.iov_base = (void *)(uintptr_t)request, .iov_len = sizeof *request};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (passed >= 0) {
    memset(&control, 0, sizeof control);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &passed, sizeof passed);
  }
  return syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL) == (long)sizeof *request;
}

static bool receive(int fd, struct mn_reply *reply, long long end_ms) {
  for (;;) {
    if (!wait_for(fd, POLLIN, end_ms)) return false;
    long n = syscall(SYS_recvfrom, fd, reply, sizeof *reply, 0, NULL, NULL);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return n == (long)sizeof *reply && reply->magic == MN_MAGIC;
  }
}

/* Send a request. Returns the connection on which the replies come; -1 with errno: this process's own limit, or
 * ENETDOWN. */
static int begin(struct mn_request *request, int passed) {
  request->magic = MN_MAGIC;
  int fd = dial(now_ms() + MN_PLACE_MS);
  if (fd < 0) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) errno = ENETDOWN;
    return -1;
  }
  if (send_request(fd, request, passed)) return fd;
  syscall(SYS_close, fd);
  errno = ENETDOWN;
  return -1;
}

/* One request and its one reply. */
static bool ask(struct mn_request *request, struct mn_reply *reply, long patience_ms) {
  long long end_ms = now_ms() + patience_ms;
  int fd = begin(request, -1);
  if (fd < 0) return false;
  bool ok = receive(fd, reply, end_ms);
  syscall(SYS_close, fd);
  return ok;
}

unsigned mn_ask_connect(int fd, uint64_t cookie, const struct mn_address *to) {
  struct mn_request request = {.kind = MN_CONNECT, .cookie = cookie, .to = *to};
  struct mn_reply reply;
  int daemon = begin(&request, fd);
  if (daemon < 0) return 0;
  bool ok = receive(daemon, &reply, now_ms() + MN_PLACE_MS);
  if (ok && !reply.error && reply.mode == MN_MODE_DIALLED) ok = receive(daemon, &reply, now_ms() + DIAL_MS);
  syscall(SYS_close, daemon);
  int why = ok ? reply.error : ENETDOWN;
  if (why) errno = why;
  return why ? 0 : reply.mode;
}

int mn_ask_result(uint64_t cookie) {
  int saved = errno;
  struct mn_request request = {.kind = MN_RESULT, .cookie = cookie};
  struct mn_reply reply;
  bool ok = ask(&request, &reply, MN_PLACE_MS);
  errno = saved;
  return ok ? reply.error : 0;
}

bool mn_ask_peer(uint64_t cookie, const struct mn_address *from, const struct mn_address *to, struct mn_reply *out) {
  int saved = errno;
  struct mn_request request = {.kind = MN_PEER, .cookie = cookie, .from = *from, .to = *to};
  bool ok = ask(&request, out, MN_PEER_MS) && (out->address.family || out->address6.family);
  errno = saved;
  return ok;
}
