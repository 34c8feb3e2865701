/* connect, and getsockopt(SO_ERROR), which returns the error of a failed connect. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "client.h"
#include "files.h"
#include "peers.h"
#include "real.h"
#include "socket.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

static int fail(int why) {
  errno = why;
  return -1;
}

/* The kernel's connect, to an IPv4 address on loopback. */
static int connect_to(int fd, int family, uint32_t ip, in_port_t port) {
  struct mn_address address = mn_ipv4(ip, port);
  struct sockaddr_storage sa;
  socklen_t len = mn_to_sockaddr(&address, family, &sa);
  return mn_real()->connect(fd, (struct sockaddr *)&sa, len);
}

static int bind_to(int fd, int family, uint32_t ip, in_port_t port) {
  struct mn_address address = mn_ipv4(ip, port);
  struct sockaddr_storage sa;
  socklen_t len = mn_to_sockaddr(&address, family, &sa);
  return mn_real()->bind(fd, (struct sockaddr *)&sa, len);
}

/* meshnetd ends an attempt that failed by disconnecting the socket, which the kernel reports as ECONNRESET. */
static int true_error(int fd, int error) {
  if (error != ECONNRESET && error != ECONNABORTED) return error;
  int why = mn_ask_result(mn_socket_cookie(fd));
  return why ? why : error;
}

static int pending_error(int fd) {
  int error = 0;
  socklen_t len = sizeof error;
  if (mn_real()->getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) return 0;
  return error;
}

/* The outcome of the kernel's connect, with the true errno. Where a socket is ended while connect waits, kernels return
 * ECONNRESET, EPIPE or EINPROGRESS, by their version and the socket's time-out. */
static int outcome(int fd, int rc) {
  if (rc == 0) return 0;
  int error = errno;
  bool ended = (error == EPIPE || error == EINPROGRESS) && mn_socket_state(fd) == TCP_CLOSE;
  if (ended) {
    error = pending_error(fd);
    if (!error) error = ECONNRESET;
  }
  return fail(true_error(fd, error));
}

/* Wait for the outcome as a blocking connect does, on a kernel that cannot end one from outside. */
static int wait_in_poll(int fd) {
  struct timeval limit = {0};
  socklen_t len = sizeof limit;
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  mn_real()->getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &len);
  long long ms = limit.tv_sec * 1000LL + (limit.tv_usec + 999) / 1000;
  int n = poll(&p, 1, ms > 0 ? (int)(ms < 0x7fffffff ? ms : 0x7fffffff) : -1);
  if (n < 0) return -1;
  if (n == 0) return fail(EINPROGRESS);
  int error = pending_error(fd);
  return error ? fail(true_error(fd, error)) : 0;
}

static int connect_in_poll(int fd, int family) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return -1;
  if (!(flags & O_NONBLOCK)) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int rc = connect_to(fd, family, INADDR_LOOPBACK, htons(MN_HOLD_PORT));
  int why = errno;
  if (flags & O_NONBLOCK) {
    errno = why;
    return rc;
  }
  fcntl(fd, F_SETFL, flags);
  errno = why;
  return rc < 0 && why == EINPROGRESS ? wait_in_poll(fd) : rc;
}

/* Connect over meshnetd. */
static int connect_over(int fd, int family, const struct mn_address *to) {
  uint64_t cookie = mn_socket_cookie(fd);
  unsigned mode = mn_ask_connect(fd, cookie, to);
  if (!mode) return -1;
  if (family == AF_INET6) mn_socket_allow_ipv4(fd);
  mn_socket_mark(fd, mn_mark_for(to));
  struct mn_peer peer = {.known = true};
  *(to->family == 6 ? &peer.address6 : &peer.address) = *to;
  mn_peers_keep(cookie, &peer);
  return outcome(fd, mode == MN_MODE_POLL ? connect_in_poll(fd, family)
                                          : connect_to(fd, family, INADDR_LOOPBACK, htons(MN_HOLD_PORT)));
}

/* Connect to a port of this machine through its own tailnet address. */
static int connect_own(int fd, int family, const struct mn_address *to) {
  uint32_t source = to->family == 6 ? MN_OWN6_SOURCE : MN_OWN4_SOURCE;
  struct mn_address name;
  if (!mn_socket_name(fd, &name)) return fail(EBADF);
  bool bound = name.port != 0 || mn_is_ipv4(&name, source);
  if (bound && !mn_is_ipv4(&name, source)) return connect_over(fd, family, to);
  if (family == AF_INET6) mn_socket_allow_ipv4(fd);
  if (!bound) {
    int one = 1;
    syscall(SYS_setsockopt, fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind_to(fd, family, source, 0) != 0) return -1;
  }
  mn_socket_mark(fd, mn_mark_for(to));
  return connect_to(fd, family, INADDR_LOOPBACK, to->port);
}

/* Only TCP leaves the machine: tailscaled's proxy carries nothing else. */
static int connect_other(int fd, int family, const struct mn_address *to) {
  struct mn_self self = mn_self();
  if (!mn_is_own(&self, to)) return fail(ENETUNREACH);
  if (family == AF_INET6) mn_socket_allow_ipv4(fd);
  return connect_to(fd, family, INADDR_LOOPBACK, to->port);
}

static int connect_tailnet(int fd, int family, const struct mn_address *to) {
  if (!mn_socket_is_tcp(fd)) return connect_other(fd, family, to);
  /* On its way or connected: the kernel answers, and waits, as it does for any socket. */
  if (mn_socket_state(fd) != TCP_CLOSE) {
    return outcome(fd, connect_to(fd, family, INADDR_LOOPBACK, htons(MN_HOLD_PORT)));
  }
  int error = pending_error(fd);
  if (error) return fail(true_error(fd, error));
  struct mn_self self = mn_self();
  return mn_is_own(&self, to) ? connect_own(fd, family, to) : connect_over(fd, family, to);
}

MN_EXPORT int connect(int fd, const struct sockaddr *sa, socklen_t len) {
  struct mn_address to;
  if (!mn_from_sockaddr(sa, len, &to) || !mn_is_tailnet(&to) || !mn_active()) return mn_real()->connect(fd, sa, len);
  int family = mn_socket_family(fd);
  /* The kernel refuses these: no socket, or an address of the other family. */
  if (!family || (family == AF_INET && sa->sa_family != AF_INET) || (family == AF_INET6 && sa->sa_family == AF_INET)) {
    return mn_real()->connect(fd, sa, len);
  }
  return connect_tailnet(fd, family, &to);
}

MN_EXPORT int getsockopt(int fd, int level, int option, void *value, socklen_t *len) {
  int rc = mn_real()->getsockopt(fd, level, option, value, len);
  if (rc != 0 || level != SOL_SOCKET || option != SO_ERROR || *len != sizeof(int)) return rc;
  int *error = value;
  if (*error == ECONNRESET && mn_socket_family(fd) && mn_socket_state(fd) == TCP_CLOSE && mn_active()) {
    *error = true_error(fd, *error);
  }
  return rc;
}
