/* sendto, sendmsg, sendmmsg: datagrams to the tailnet go to this machine itself, or nowhere. */
#include <errno.h>
#include <netinet/in.h>

#include "files.h"
#include "real.h"
#include "socket.h"

/* Where a datagram to the tailnet goes: the length of the address in `out`; 0 with errno: nowhere. */
static socklen_t redirect(int fd, const struct sockaddr *sa, const struct mn_address *to,
                          struct sockaddr_storage *out) {
  struct mn_self self = mn_self();
  if (!mn_is_own(&self, to)) {
    errno = ENETUNREACH;
    return 0;
  }
  struct mn_address loopback = mn_ipv4(INADDR_LOOPBACK, to->port);
  if (sa->sa_family == AF_INET6) mn_socket_allow_ipv4(fd);
  return mn_to_sockaddr(&loopback, sa->sa_family, out);
}

static bool to_tailnet(int fd, const void *sa, socklen_t len, struct mn_address *to) {
  return sa && mn_from_sockaddr(sa, len, to) && mn_is_tailnet(to) && mn_active() && mn_socket_family(fd);
}

MN_EXPORT ssize_t sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *sa, socklen_t len) {
  struct mn_address to;
  struct sockaddr_storage other;
  if (!to_tailnet(fd, sa, len, &to)) return mn_real()->sendto(fd, data, n, flags, sa, len);
  socklen_t other_len = redirect(fd, sa, &to, &other);
  return other_len ? mn_real()->sendto(fd, data, n, flags, (struct sockaddr *)&other, other_len) : -1;
}

MN_EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  struct mn_address to;
  struct sockaddr_storage other;
  if (!message || !to_tailnet(fd, message->msg_name, message->msg_namelen, &to)) {
    return mn_real()->sendmsg(fd, message, flags);
  }
  struct msghdr changed = *message;
  changed.msg_name = &other;
  changed.msg_namelen = redirect(fd, message->msg_name, &to, &other);
  return changed.msg_namelen ? mn_real()->sendmsg(fd, &changed, flags) : -1;
}

/* As the kernel does it: one after the other, up to the first that fails. */
static int one_by_one(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  unsigned sent = 0;
  for (; sent < n; sent++) {
    ssize_t len = sendmsg(fd, &messages[sent].msg_hdr, flags);
    if (len < 0) break;
    messages[sent].msg_len = (unsigned)len;
  }
  return sent || !n ? (int)sent : -1;
}

MN_EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  struct mn_address to;
  for (unsigned i = 0; messages && i < n; i++) {
    const struct msghdr *message = &messages[i].msg_hdr;
    if (to_tailnet(fd, message->msg_name, message->msg_namelen, &to)) return one_by_one(fd, messages, n, flags);
  }
  return mn_real()->sendmmsg(fd, messages, n, flags);
}
