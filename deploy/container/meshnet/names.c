/* accept, getpeername, getsockname: the addresses at the ends of a connection. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "client.h"
#include "files.h"
#include "peers.h"
#include "real.h"
#include "socket.h"

/* One of the two addresses of a machine: as the mark has it, if a socket of that form can have it. */
static bool choose(const struct mn_address *v4, const struct mn_address *v6, enum mn_mark mark, int form,
                   struct mn_address *out) {
  bool six = form == AF_INET6 && v6->family && (mark == MN_MARK6 || !v4->family);
  *out = six ? *v6 : *v4;
  return out->family != 0;
}

static bool own_address(enum mn_mark mark, int form, struct mn_address *out) {
  struct mn_self self = mn_self();
  return choose(&self.v4, &self.v6, mark, form, out);
}

static bool is_own_source(const struct mn_address *address, enum mn_mark *mark) {
  *mark = mn_is_ipv4(address, MN_OWN6_SOURCE) ? MN_MARK6 : MN_MARK4;
  return mn_is_ipv4(address, MN_OWN4_SOURCE) || mn_is_ipv4(address, MN_OWN6_SOURCE);
}

/* Ask who the peer is, once for each socket. */
static bool lookup(int fd, const struct mn_address *from, const struct mn_address *to, struct mn_peer *peer) {
  uint64_t cookie = mn_socket_cookie(fd);
  struct mn_reply reply = {0};
  if (cookie && mn_peers_find(cookie, peer)) return peer->known;
  *peer = (struct mn_peer){.known = false};
  if (mn_ask_peer(cookie, from, to, &reply)) {
    *peer = (struct mn_peer){.known = true, .address = reply.address, .address6 = reply.address6};
  } else if (reply.magic != MN_MAGIC || reply.error) {
    return false; /* not known now: the next call asks again */
  }
  if (cookie) mn_peers_keep(cookie, peer);
  return peer->known;
}

/* The tailnet address of the peer of a TCP socket, whose address is `to` for the kernel. False when `to` is the true
 * one. */
static bool true_peer(int fd, const struct mn_address *to, int form, struct mn_address *out) {
  struct mn_address from;
  struct mn_peer peer;
  enum mn_mark mark;
  if (!mn_is_loopback4(to) || !mn_active() || !mn_socket_is_tcp(fd) || !mn_socket_name(fd, &from)) return false;
  if (!mn_is_loopback4(&from)) return false;
  if (is_own_source(to, &mark) || is_own_source(&from, &mark)) {
    if (!own_address(mark, form, out)) return false;
    out->port = to->port;
    return true;
  }
  if (!lookup(fd, &from, to, &peer)) return false;
  if (!choose(&peer.address, &peer.address6, mn_socket_marked(fd), form, out)) return false;
  if (!out->port) out->port = to->port;
  return true;
}

/* The tailnet address of a socket that the kernel has at `from`. */
static bool true_name(int fd, const struct mn_address *from, int form, struct mn_address *out) {
  struct mn_address to, ignored;
  enum mn_mark mark;
  if (!mn_is_loopback4(from) || !mn_active()) return false;
  bool known = is_own_source(from, &mark);
  if (!known) {
    mark = mn_socket_marked(fd);
    known = mark != MN_UNMARKED;
  }
  if (!known) known = mn_socket_peer(fd, &to) && true_peer(fd, &to, form, &ignored);
  if (!known || !own_address(mark, form, out)) return false;
  out->port = from->port;
  return true;
}

/* Give an address to the caller as the kernel does: as much as there is room for, and its whole length. */
static void give(const struct sockaddr_storage *from, socklen_t from_len, struct sockaddr *sa, socklen_t *len) {
  memcpy(sa, from, from_len < *len ? from_len : *len);
  *len = from_len;
}

typedef bool truth(int fd, const struct mn_address *kernel, int form, struct mn_address *out);

static void tell(int fd, truth *find, struct sockaddr_storage *name, socklen_t name_len, struct sockaddr *sa,
                 socklen_t *len) {
  struct mn_address kernel, found;
  int saved = errno;
  if (name_len <= sizeof *name && mn_from_sockaddr(name, name_len, &kernel) &&
      find(fd, &kernel, name->ss_family, &found)) {
    struct sockaddr_storage better;
    socklen_t better_len = mn_to_sockaddr(&found, name->ss_family, &better);
    if (better_len) {
      *name = better;
      name_len = better_len;
    }
  }
  give(name, name_len, sa, len);
  errno = saved;
}

typedef int name_call(int fd, struct sockaddr *sa, socklen_t *len);

/* Only the kernel can refuse a bad pointer without a crash; an unnamed Unix socket's name is shorter than any. */
static bool kernel_only(const struct sockaddr *sa, const socklen_t *len) {
  return !sa || !len || *len > 0x7fffffff;
}

static int named(name_call *call, truth *find, int fd, struct sockaddr *sa, socklen_t *len) {
  if (kernel_only(sa, len)) return call(fd, sa, len);
  struct sockaddr_storage name;
  socklen_t name_len = sizeof name;
  int rc = call(fd, (struct sockaddr *)&name, &name_len);
  if (rc == 0) tell(fd, find, &name, name_len, sa, len);
  return rc;
}

MN_EXPORT int getpeername(int fd, struct sockaddr *sa, socklen_t *len) {
  return named(mn_real()->getpeername, true_peer, fd, sa, len);
}

MN_EXPORT int getsockname(int fd, struct sockaddr *sa, socklen_t *len) {
  return named(mn_real()->getsockname, true_name, fd, sa, len);
}

MN_EXPORT int accept(int fd, struct sockaddr *sa, socklen_t *len) {
  if (kernel_only(sa, len)) return mn_real()->accept(fd, sa, len);
  struct sockaddr_storage name;
  socklen_t name_len = sizeof name;
  int made = mn_real()->accept(fd, (struct sockaddr *)&name, &name_len);
  if (made >= 0) tell(made, true_peer, &name, name_len, sa, len);
  return made;
}

MN_EXPORT int accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags) {
  if (kernel_only(sa, len)) return mn_real()->accept4(fd, sa, len, flags);
  struct sockaddr_storage name;
  socklen_t name_len = sizeof name;
  int made = mn_real()->accept4(fd, (struct sockaddr *)&name, &name_len, flags);
  if (made >= 0) tell(made, true_peer, &name, name_len, sa, len);
  return made;
}
