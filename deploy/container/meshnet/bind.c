/* bind: a port of the machine's own tailnet address. */
#include <netinet/in.h>

#include "files.h"
#include "real.h"
#include "socket.h"

MN_EXPORT int bind(int fd, const struct sockaddr *sa, socklen_t len) {
  struct mn_address name;
  if (!mn_from_sockaddr(sa, len, &name) || !mn_is_tailnet(&name) || !mn_active()) return mn_real()->bind(fd, sa, len);
  struct mn_self self = mn_self();
  int family = mn_socket_family(fd);
  if (!mn_is_own(&self, &name) || family != sa->sa_family) return mn_real()->bind(fd, sa, len);
  /* tailscaled brings what comes in to 127.0.0.1, for IPv6 too. */
  if (family == AF_INET6) mn_socket_allow_ipv4(fd);
  struct mn_address loopback = mn_ipv4(INADDR_LOOPBACK, name.port);
  struct sockaddr_storage local;
  socklen_t local_len = mn_to_sockaddr(&loopback, family, &local);
  int rc = mn_real()->bind(fd, (struct sockaddr *)&local, local_len);
  if (rc == 0) mn_socket_mark(fd, mn_mark_for(&name));
  return rc;
}

