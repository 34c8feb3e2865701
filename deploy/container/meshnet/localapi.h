/* Questions to tailscaled's LocalAPI, one connection each. */
#ifndef MESHNET_LOCALAPI_H
#define MESHNET_LOCALAPI_H

#include <sys/socket.h>
#include <sys/types.h>

#include "answer.h"
#include "loop.h"

struct query {
  struct watch watch;
  struct timer timer;
  char *data;
  size_t len, room;
  size_t sent, request_len;
  char request[256];
  /* Called once, unless query_cancel comes first. `status` is HTTP's; 0: no answer, with errno. */
  void (*done)(struct query *query, int status, const char *body, size_t len);
};

void localapi_socket(const char *path);
/* Ask for a path under /localapi/v0/. tailscaled's credentials, when it is connected, go to `peer` (NULL: not wanted).
 * False with errno, and nothing is called, when tailscaled does not run. */
bool query_start(struct query *query, const char *path, int64_t limit_ms, struct ucred *peer);
/* tailscaled's process; 0 when it does not run, or cannot be seen from here. */
pid_t localapi_pid(void);
void query_cancel(struct query *query);

#endif
