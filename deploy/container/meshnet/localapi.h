/* Questions to tailscaled's LocalAPI, one connection each. */
#ifndef MESHNET_LOCALAPI_H
#define MESHNET_LOCALAPI_H

#include <sys/socket.h>

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
/* Ask for a path under /localapi/v0/. False with errno, and nothing is called, when tailscaled does not run. */
bool query_start(struct query *query, const char *path, int64_t limit_ms);
/* tailscaled's process. False when it does not run, or cannot be seen from here. */
bool localapi_process(struct ucred *out);
void query_cancel(struct query *query);

#endif
