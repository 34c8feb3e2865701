#include "localapi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "process.h"

static struct sockaddr_un where = {.sun_family = AF_UNIX, .sun_path = "/var/run/tailscale/tailscaled.sock"};

void localapi_socket(const char *path) { snprintf(where.sun_path, sizeof where.sun_path, "%s", path); }

bool localapi_process(struct ucred *out) {
  static struct ucred known;
  socklen_t len = sizeof known;
  if (!known.pid || !process_runs(known.pid)) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    if (connect(fd, (struct sockaddr *)&where, sizeof where) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &known, &len) != 0) {
      known.pid = 0;
    }
    close(fd);
  }
  *out = known;
  return known.pid != 0;
}

void query_cancel(struct query *query) {
  loop_close(&query->watch);
  loop_cancel(&query->timer);
  free(query->data);
  query->data = NULL;
}

static void finish(struct query *query, int why) {
  const char *body = NULL;
  size_t body_len = 0;
  int status = why ? 0 : mn_http_status(query->data ? query->data : "", query->len, &body, &body_len);
  char *data = query->data;
  query->data = NULL;
  query_cancel(query);
  errno = why ? why : EPROTO;
  query->done(query, status, body, body_len);
  free(data);
}

static void late(struct timer *timer) { finish(MEMBER_OF(timer, struct query, timer), ETIMEDOUT); }

static bool grow(struct query *query) {
  if (query->len < query->room) return true;
  size_t room = query->room ? query->room * 2 : 16384;
  char *data = room <= MN_ANSWER_MAX ? realloc(query->data, room) : NULL;
  if (!data) return false;
  query->data = data;
  query->room = room;
  return true;
}

static void take(struct query *query) {
  for (;;) {
    if (!grow(query)) return finish(query, EMSGSIZE);
    ssize_t n = recv(query->watch.fd, query->data + query->len, query->room - query->len, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return finish(query, n < 0 ? errno : 0);
    query->len += (size_t)n;
  }
}

static void ready(struct watch *watch, uint32_t events) {
  struct query *query = MEMBER_OF(watch, struct query, watch);
  (void)events;
  while (query->sent < query->request_len) {
    ssize_t n = send(watch->fd, query->request + query->sent, query->request_len - query->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return finish(query, errno);
    query->sent += (size_t)n;
    if (query->sent == query->request_len) loop_events(watch, EPOLLIN);
  }
  take(query);
}

bool query_start(struct query *query, const char *path, int64_t limit_ms) {
  static const char form[] = "GET /localapi/v0/%s HTTP/1.0\r\nHost: local-tailscaled.sock\r\n\r\n";
  int len = snprintf(query->request, sizeof query->request, form, path);
  if (len < 0 || (size_t)len >= sizeof query->request) {
    errno = EMSGSIZE;
    return false;
  }
  query->request_len = (size_t)len;
  query->sent = query->len = query->room = 0;
  query->data = NULL;
  query->watch.fd = -1;
  query->watch.ready = ready;
  query->timer.fire = late;
  query->timer.link = NULL;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  if (connect(fd, (struct sockaddr *)&where, sizeof where) != 0) {
    int why = errno;
    close(fd);
    errno = why;
    return false;
  }
  if (!loop_watch(&query->watch, fd, EPOLLIN | EPOLLOUT)) return false;
  loop_after(&query->timer, limit_ms);
  return true;
}
