/* A listener whose queue is full drops each further SYN (tcp_conn_request in net/ipv4/tcp_input.c, sk_acceptq_is_full,
 * since Linux 4.10), so the kernel of a connecting socket keeps trying: SYN_SENT. A second socket on the listener's
 * address (SO_REUSEPORT, same user) that connects to the first is a simultaneous open, RFC 9293 3.5. */
#include "hold.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "address.h"

enum { TRY_MS = 500 };

static struct watch listener = {.fd = -1};
static int filler = -1;
static void (*accepted)(int fd, const struct mn_address *from);

static struct sockaddr_in place(void) {
  struct sockaddr_in in = {.sin_family = AF_INET};
  in.sin_port = htons(MN_HOLD_PORT);
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return in;
}

static int tcp(void) { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

static int close_with(int fd, int why) {
  if (fd >= 0) close(fd);
  errno = why;
  return -1;
}

/* A socket on the place. */
static int placed(void) {
  int one = 1;
  struct sockaddr_in in = place();
  int fd = tcp();
  if (fd < 0) return -1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(fd, (struct sockaddr *)&in, sizeof in) != 0) {
    return close_with(fd, errno);
  }
  return fd;
}

/* A socket that connects to the place, and has to wait. */
static int held(void) {
  struct sockaddr_in in = place();
  int fd = tcp();
  if (fd < 0) return -1;
  if (connect(fd, (struct sockaddr *)&in, sizeof in) != 0 && errno != EINPROGRESS) return close_with(fd, errno);
  return fd;
}

int hold_state(int fd) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_state : 0;
}

bool hold_name(int waiting, struct mn_address *out) {
  struct sockaddr_storage sa;
  socklen_t len = sizeof sa;
  return getsockname(waiting, (struct sockaddr *)&sa, &len) == 0 && mn_from_sockaddr(&sa, len, out);
}

int hold_open(int waiting) {
  struct mn_address name;
  struct sockaddr_storage sa;
  if (!hold_name(waiting, &name)) return -1;
  socklen_t len = mn_to_sockaddr(&name, AF_INET, &sa);
  if (!len) return close_with(-1, EAFNOSUPPORT);
  int fd = placed();
  if (fd < 0) return -1;
  if (connect(fd, (struct sockaddr *)&sa, len) != 0 && errno != EINPROGRESS) return close_with(fd, errno);
  return fd;
}

static bool ready_within(int fd, int ms) {
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  return poll(&p, 1, ms) == 1;
}

bool hold_end(int waiting) {
  const struct sockaddr none = {.sa_family = AF_UNSPEC};
  return connect(waiting, &none, sizeof none) == 0;
}

/* The other side of a simultaneous open that takes nothing: the held socket answers with SYN and ACK, and gets a
 * reset for that, at once or when it repeats it after a second. It never looks open. */
bool hold_break(const struct mn_address *waiting) {
  struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  struct sock_fprog filter = {.len = 1, .filter = &nothing};
  struct sockaddr_storage sa;
  socklen_t len = mn_to_sockaddr(waiting, AF_INET, &sa);
  int fd = len ? placed() : -1;
  if (fd < 0) return false;
  bool ok = setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0 &&
            (connect(fd, (struct sockaddr *)&sa, len) == 0 || errno == EINPROGRESS);
  close(fd);
  return ok;
}

/* Does a socket wait, and open when it is opened from the other side? */
static bool try_open(void) {
  int a = held();
  bool good = a >= 0 && !ready_within(a, 20) && hold_state(a) == TCP_SYN_SENT;
  int b = good ? hold_open(a) : -1;
  good = b >= 0 && ready_within(a, TRY_MS) && hold_state(a) == TCP_ESTABLISHED;
  if (b >= 0) close(b);
  if (a >= 0) close(a);
  return good;
}

/* Does a waiting socket end when it is ended from outside? */
static bool try_end(void) {
  int a = held();
  bool good = a >= 0 && !ready_within(a, 0) && hold_end(a) && ready_within(a, TRY_MS);
  if (a >= 0) close(a);
  return good;
}

struct blocked {
  int fd;
  int error;
};

static void *block(void *argument) {
  struct blocked *blocked = argument;
  struct sockaddr_in in = place();
  blocked->error = connect(blocked->fd, (struct sockaddr *)&in, sizeof in) == 0 ? 0 : errno;
  return NULL;
}

/* Does it also where a thread waits inside connect? Some kernels of 2023 refuse with EBUSY: "tcp: deny
 * tcp_disconnect() when threads are waiting". The thread's own limit ends it there. */
static bool try_end_blocked(void) {
  struct timeval limit = {.tv_usec = TRY_MS * 1000};
  struct blocked blocked = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  pthread_t thread;
  if (blocked.fd < 0) return false;
  setsockopt(blocked.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (pthread_create(&thread, NULL, block, &blocked) != 0) {
    close(blocked.fd);
    return false;
  }
  for (int i = 0; i < TRY_MS && hold_state(blocked.fd) != TCP_SYN_SENT; i++) {
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
  }
  /* That the thread is asleep by now cannot be seen: give it a moment. */
  struct timespec moment = {.tv_nsec = 20000000};
  nanosleep(&moment, NULL);
  int64_t began_ms = loop_now_ms();
  bool ended = hold_end(blocked.fd);
  pthread_join(thread, NULL);
  close(blocked.fd);
  /* By the kernel's age with ECONNRESET, EPIPE or EINPROGRESS. */
  return ended && blocked.error != 0 && loop_now_ms() - began_ms < TRY_MS / 2;
}

static void on_accept(struct watch *watch, uint32_t events) {
  (void)events;
  struct sockaddr_storage sa;
  struct mn_address from;
  socklen_t len = sizeof sa;
  int fd;
  while ((fd = accept4(watch->fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
    if (mn_from_sockaddr(&sa, len, &from)) {
      accepted(fd, &from);
    } else {
      close(fd);
    }
    len = sizeof sa;
  }
}

static bool fill(int fd) {
  if (listen(fd, 0) != 0) return false;
  filler = held();
  return filler >= 0 && ready_within(filler, TRY_MS);
}

static unsigned found_mode(int fd) {
  if (!fill(fd) || !try_open() || !try_end()) return MN_MODE_DIALLED;
  return try_end_blocked() ? MN_MODE_HOLD : MN_MODE_POLL;
}

unsigned hold_start(unsigned wanted, void (*accepting)(int fd, const struct mn_address *from)) {
  accepted = accepting;
  int fd = placed();
  if (fd < 0) return 0;
  unsigned mode = found_mode(fd);
  if (wanted > mode) mode = wanted;
  if (mode != MN_MODE_DIALLED) {
    listener.fd = fd; /* never watched: it must stay full */
    return mode;
  }
  if (filler >= 0) close(filler);
  close(fd);
  fd = placed();
  if (fd < 0 || listen(fd, 1024) != 0) {
    close_with(fd, errno);
    return 0;
  }
  listener.ready = on_accept;
  return loop_watch(&listener, fd, EPOLLIN) ? MN_MODE_DIALLED : 0;
}
