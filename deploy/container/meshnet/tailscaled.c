#include "tailscaled.h"

#include <sys/socket.h>

#include "address.h"
#include "diag.h"
#include "localapi.h"

pid_t tailscaled_pid(void) {
  struct ucred tailscaled;
  return localapi_process(&tailscaled) ? tailscaled.pid : 0;
}

bool tailscaled_has(int connection, in_port_t port) {
  struct sockaddr_storage sa;
  struct mn_address here, there = mn_ipv4(INADDR_LOOPBACK, port);
  struct ucred tailscaled;
  struct diag found;
  socklen_t len = sizeof sa;
  if (getsockname(connection, (struct sockaddr *)&sa, &len) != 0 || !mn_from_sockaddr(&sa, len, &here)) return false;
  enum diag_result result = diag_find(&there, &here, &found);
  if (result == DIAG_UNKNOWN) return true;
  return result == DIAG_FOUND && found.inode != 0 && localapi_process(&tailscaled) && found.uid == tailscaled.uid;
}
