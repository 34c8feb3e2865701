#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"
#include "diag.h"
#include "process.h"

enum {
  PIPES_KEPT = 64,
  PIPE_SIZE = 256 * 1024,
  /* Bytes that one connection may move before the others are served. */
  TURN = 4 * 1024 * 1024,
  /* tailscaled's proxy ends both directions when either ends. So the relay delays the end of a program's data while the
   * program still reads, until nothing has come for this long. */
  QUIET_MS = 10000,
  /* When a program closes its socket, the end arrives just before the kernel shows the socket as closed. */
  LOOK_FIRST_MS = 2,
  LOOK_MAX_MS = 500,
};

static int kept[PIPES_KEPT][2];
static int kept_count;

static bool get_pipe(struct flow *flow) {
  if (flow->pipe[0] >= 0) return true;
  if (kept_count > 0) {
    memcpy(flow->pipe, kept[--kept_count], sizeof flow->pipe);
    return true;
  }
  if (pipe2(flow->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    flow->pipe[0] = flow->pipe[1] = -1;
    return false;
  }
  /* Where the kernel's limit for the user is reached, a pipe of its usual size does. */
  (void)fcntl(flow->pipe[1], F_SETPIPE_SZ, PIPE_SIZE);
  return true;
}

static void put_pipe(struct flow *flow) {
  if (flow->pipe[0] < 0) return;
  if (flow->in_pipe == 0 && kept_count < PIPES_KEPT) {
    memcpy(kept[kept_count++], flow->pipe, sizeof flow->pipe);
  } else {
    close(flow->pipe[0]);
    close(flow->pipe[1]);
  }
  flow->pipe[0] = flow->pipe[1] = -1;
  flow->in_pipe = 0;
}

/* Move what there is. Returns the bytes read; -1 when the connection is broken. */
static ssize_t pump(struct flow *flow, int from, int to) {
  size_t moved = 0;
  while (moved < TURN) {
    if (flow->in_pipe == 0) {
      if (flow->ended) break;
      if (!get_pipe(flow)) return -1;
      ssize_t n = splice(from, NULL, flow->pipe[1], NULL, PIPE_SIZE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) return -1;
      if (n == 0) {
        flow->ended = true;
        break;
      }
      flow->in_pipe = (size_t)n;
      moved += (size_t)n;
    }
    ssize_t n = splice(flow->pipe[0], NULL, to, NULL, flow->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return -1;
    flow->in_pipe -= (size_t)n;
  }
  if (flow->in_pipe == 0) put_pipe(flow);
  return (ssize_t)moved;
}

/* Whether a close resets the connection. It does until the relay has ended well, so it also does when meshnetd is
 * killed. */
static void reset_on_close(int fd, bool yes) {
  struct linger linger = {.l_onoff = yes, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

static void finish(struct relay *relay, bool broken) {
  if (!broken && !relay->reset) reset_on_close(relay->inner.fd, false);
  if (!broken) reset_on_close(relay->outer.fd, false);
  loop_close(&relay->inner);
  loop_close(&relay->outer);
  loop_cancel(&relay->timer);
  put_pipe(&relay->out);
  put_pipe(&relay->in);
  relay->done(relay);
}

void relay_abort(struct relay *relay) { finish(relay, true); }

/* Whether the program has closed its socket, and not only shut its side down. */
static bool program_is_gone(int inner) {
  struct sockaddr_storage sa;
  struct mn_address from, to;
  struct diag found;
  socklen_t len = sizeof sa;
  if (getpeername(inner, (struct sockaddr *)&sa, &len) != 0 || !mn_from_sockaddr(&sa, len, &from)) return true;
  len = sizeof sa;
  if (getsockname(inner, (struct sockaddr *)&sa, &len) != 0 || !mn_from_sockaddr(&sa, len, &to)) return true;
  return diag_find(&from, &to, &found) != DIAG_FOUND || found.inode == 0;
}

/* Pass the end of the program's data on to the tailnet, or delay it. */
static void end_out(struct relay *relay) {
  if (!relay->half_close && !relay->in.ended && !program_is_gone(relay->inner.fd)) {
    if (loop_now_ms() - relay->last_ms < QUIET_MS) {
      relay->look_ms = relay->look_ms ? relay->look_ms * 2 : LOOK_FIRST_MS;
      if (relay->look_ms > LOOK_MAX_MS) relay->look_ms = LOOK_MAX_MS;
      loop_after(&relay->timer, relay->look_ms);
      return;
    }
    relay->reset = true;
  }
  shutdown(relay->outer.fd, SHUT_WR);
  relay->out.passed_on = true;
}

/* Move both ways, and pass ends on. */
static void turn(struct relay *relay) {
  ssize_t out = pump(&relay->out, relay->inner.fd, relay->outer.fd);
  ssize_t in = out < 0 ? -1 : pump(&relay->in, relay->outer.fd, relay->inner.fd);
  if (out < 0 || in < 0) return finish(relay, true);
  if (in > 0) relay->last_ms = loop_now_ms();
  if (relay->in.ended && !relay->in.passed_on && relay->in.in_pipe == 0) {
    relay->in.passed_on = true;
    if (relay->reset) return finish(relay, false);
    /* A tailscaled that was killed ends its connections as if their peers had. */
    if (relay->proxy && !process_runs(relay->proxy)) return finish(relay, true);
    shutdown(relay->inner.fd, SHUT_WR);
  }
  if (relay->out.ended && !relay->out.passed_on && relay->out.in_pipe == 0) end_out(relay);
  if (relay->in.passed_on && relay->out.passed_on) return finish(relay, false);
  if (out >= TURN || in >= TURN) loop_after(&relay->timer, 0);
}

static void again(struct timer *timer) { turn(MEMBER_OF(timer, struct relay, timer)); }

static void ready(struct relay *relay, struct watch *watch, uint32_t events) {
  turn(relay);
  /* The data before the error is moved now. A direction that has ended does not notice the error itself. */
  int error = 0;
  socklen_t len = sizeof error;
  if (!(events & EPOLLERR) || watch->fd < 0) return;
  if (getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error) finish(relay, true);
}

static void inner_ready(struct watch *watch, uint32_t events) {
  ready(MEMBER_OF(watch, struct relay, inner), watch, events);
}

static void outer_ready(struct watch *watch, uint32_t events) {
  ready(MEMBER_OF(watch, struct relay, outer), watch, events);
}

bool relay_start(struct relay *relay, int inner, int outer) {
  const uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  relay->out = relay->in = (struct flow){.pipe = {-1, -1}};
  relay->inner = (struct watch){.fd = -1, .ready = inner_ready};
  relay->outer = (struct watch){.fd = -1, .ready = outer_ready};
  relay->timer = (struct timer){.fire = again};
  relay->reset = false;
  relay->look_ms = 0;
  reset_on_close(inner, true);
  reset_on_close(outer, true);
  relay->last_ms = loop_now_ms();
  if (!loop_watch(&relay->inner, inner, events)) {
    close(outer);
    return false;
  }
  if (!loop_watch(&relay->outer, outer, events)) {
    loop_close(&relay->inner);
    return false;
  }
  return true;
}
