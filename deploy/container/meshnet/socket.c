#include "socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif
#ifndef IP_MINTTL
#define IP_MINTTL 21
#endif

enum mn_mark mn_mark_for(const struct mn_address *address) { return address->family == 6 ? MN_MARK6 : MN_MARK4; }

static bool option(int fd, int level, int name, void *value, socklen_t len) {
  int saved = errno;
  bool ok = syscall(SYS_getsockopt, fd, level, name, value, &len) == 0;
  errno = saved;
  return ok;
}

static void set(int fd, int level, int name, int value) {
  int saved = errno;
  syscall(SYS_setsockopt, fd, level, name, &value, sizeof value);
  errno = saved;
}

int mn_socket_family(int fd) {
  int family = 0;
  if (!option(fd, SOL_SOCKET, SO_DOMAIN, &family, sizeof family)) return 0;
  return family == AF_INET || family == AF_INET6 ? family : 0;
}

bool mn_socket_is_tcp(int fd) {
  int protocol = 0;
  return option(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, sizeof protocol) && protocol == IPPROTO_TCP;
}

int mn_socket_state(int fd) {
  struct tcp_info info = {0};
  return option(fd, IPPROTO_TCP, TCP_INFO, &info, sizeof info) ? info.tcpi_state : 0;
}

uint64_t mn_socket_cookie(int fd) {
  uint64_t cookie = 0;
  return option(fd, SOL_SOCKET, SO_COOKIE, &cookie, sizeof cookie) ? cookie : 0;
}

enum mn_mark mn_socket_marked(int fd) {
  int ttl = 0;
  if (!option(fd, IPPROTO_IP, IP_MINTTL, &ttl, sizeof ttl)) return MN_UNMARKED;
  return ttl == MN_MARK4 || ttl == MN_MARK6 ? (enum mn_mark)ttl : MN_UNMARKED;
}

void mn_socket_mark(int fd, enum mn_mark mark) { set(fd, IPPROTO_IP, IP_MINTTL, mark); }

void mn_socket_allow_ipv4(int fd) { set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0); }

static bool name(long call, int fd, struct mn_address *out) {
  int saved = errno;
  struct sockaddr_storage sa;
  socklen_t len = sizeof sa;
  bool ok = syscall(call, fd, &sa, &len) == 0 && mn_from_sockaddr(&sa, len, out);
  errno = saved;
  return ok;
}

bool mn_socket_name(int fd, struct mn_address *out) { return name(SYS_getsockname, fd, out); }

bool mn_socket_peer(int fd, struct mn_address *out) { return name(SYS_getpeername, fd, out); }
