#include "dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "close_later.h"
#include "hold.h"
#include "known.h"
#include "localapi.h"
#include "own.h"
#include "recent.h"
#include "relay.h"
#include "server.h"
#include "socks.h"
#include "tailscaled.h"

enum {
  DIALS_MAX = 8192,
  DIALS_MAX_OF_UID = 4096,
  PENDING_MAX = 2048,
  PENDING_MAX_OF_UID = 1024,
  /* Reserved for root: users must not stop slurmd from connecting. */
  ROOTS = 256,
  /* tailscaled gives a destination 5 s. */
  SOCKS_LIMIT_MS = 4900,
  DIAL_MS = 8000,
  CHECK_MS = 2000,
  /* How long a socket that was handed over may take to begin its connect, and to open. */
  HELD_MS = 5000,
  /* Most begin at once: check soon, then at growing intervals. */
  LOOK_FIRST_MS = 1,
  LOOK_MAX_MS = 64,
};

struct dial {
  void *garbage;
  struct dial *next, **link;
  int held; /* the program's socket, until it is open or ended; -1 */
  uid_t uid;
  uint64_t cookie;
  struct mn_address to;
  struct client *waiting;
  struct query query;
  bool asking;
  struct watch socks;
  struct watch opening;
  struct timer timer;
  int64_t began_ms, give_up_ms, look_ms;
  unsigned char reply[MN_SOCKS_REPLY_MAX];
  size_t reply_len;
  bool own;  /* the destination is this machine: no proxy between */
  int error; /* why it failed; 0: it has not failed */
  bool dialled;
  bool relaying;
  struct relay relay;
};

static struct dial_settings set;
static struct dial *dials;
static unsigned dial_count, pending_count;
static struct recent_table sockets;

void dial_settings(struct dial_settings settings) { set = settings; }

/* The destination of an open connection is always known, that of a closed or failed one for a while. */
const struct mn_address *dial_destination(uint64_t cookie) {
  const struct recent *place = recent_find(&sockets, cookie);
  if (place) return &place->address;
  for (const struct dial *dial = dials; dial; dial = dial->next) {
    if (dial->cookie == cookie) return &dial->to;
  }
  return NULL;
}

int dial_error(uint64_t cookie) {
  const struct recent *place = recent_find(&sockets, cookie);
  return place ? place->error : 0;
}

static uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t len = sizeof cookie;
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}

static void unlink_dial(struct dial *dial) {
  *dial->link = dial->next;
  if (dial->next) dial->next->link = dial->link;
}

/* End everything but the relay. */
static void no_longer_pending(struct dial *dial) {
  if (dial->asking) query_cancel(&dial->query);
  dial->asking = false;
  loop_cancel(&dial->timer);
  if (dial->held >= 0) close_socket(dial->held);
  dial->held = -1;
  pending_count--;
}

static void drop(struct dial *dial) {
  if (!dial->relaying) no_longer_pending(dial);
  loop_close(&dial->socks);
  loop_close(&dial->opening);
  unlink_dial(dial);
  dial_count--;
  loop_free(dial);
}

static void relay_over(struct relay *relay) { drop(MEMBER_OF(relay, struct dial, relay)); }

/* The program has not begun its connect yet. */
static void look_again(struct dial *dial) {
  dial->look_ms = dial->look_ms ? dial->look_ms * 2 : LOOK_FIRST_MS;
  if (dial->look_ms > LOOK_MAX_MS) dial->look_ms = LOOK_MAX_MS;
  loop_after(&dial->timer, dial->look_ms);
}

/* End the program's socket with the error, once it has begun its connect. */
static void try_to_end(struct dial *dial) {
  int state = hold_state(dial->held);
  if (state == TCP_CLOSE && loop_now_ms() < dial->give_up_ms) return look_again(dial);
  struct mn_address name;
  /* EBUSY: some kernels of 2023 do not end a socket in whose connect a thread waits. */
  if (state == TCP_SYN_SENT && !hold_end(dial->held) && !(hold_name(dial->held, &name) && hold_break(&name))) {
    say_often("meshnetd: cannot end a held socket: %s", strerror(errno));
  }
  drop(dial);
}

static void fail(struct dial *dial, int why) {
  char ip[46];
  mn_format_ip(&dial->to, ip);
  say_often("meshnetd: uid %u to %s port %u: %s", (unsigned)dial->uid, ip, ntohs(dial->to.port), strerror(why));
  struct recent *place = recent_place(&sockets, dial->cookie);
  place->error = dial->error = why;
  place->address = dial->to;
  loop_close(&dial->socks);
  loop_close(&dial->opening);
  if (set.mode == MN_MODE_DIALLED) {
    struct mn_reply reply = {.magic = MN_MAGIC, .error = why, .mode = set.mode};
    if (dial->waiting) client_answer(dial->waiting, &reply, true);
    drop(dial);
    return;
  }
  dial->give_up_ms = loop_now_ms() + HELD_MS;
  try_to_end(dial);
}

static void no_delay(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

/* Both sides are open. */
static void begin_relay(struct dial *dial, int inner) {
  int outer = loop_release(&dial->socks);
  no_longer_pending(dial);
  dial->relaying = true;
  no_delay(inner);
  dial->relay.half_close = dial->own;
  dial->relay.proxy = dial->own ? 0 : tailscaled_pid();
  dial->relay.done = relay_over;
  if (!relay_start(&dial->relay, inner, outer)) drop(dial);
}

/* Connected; the program may have shut its side down already. */
static bool is_open(int fd) {
  int state = hold_state(fd);
  return state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT;
}

static void opened(struct watch *watch, uint32_t events) {
  struct dial *dial = MEMBER_OF(watch, struct dial, opening);
  (void)events;
  int error = 0;
  socklen_t len = sizeof error;
  getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &len);
  if (error) return fail(dial, error == ECONNREFUSED ? ECONNABORTED : error);
  if (!is_open(watch->fd)) return;
  begin_relay(dial, loop_release(watch));
}

/* Open the program's socket, once it has begun its connect. */
static void try_to_open(struct dial *dial) {
  int state = hold_state(dial->held);
  if (state == TCP_CLOSE && loop_now_ms() < dial->give_up_ms) return look_again(dial);
  if (state != TCP_SYN_SENT) return drop(dial); /* the program has given up */
  int fd = hold_open(dial->held);
  if (fd < 0) return fail(dial, errno == EMFILE || errno == ENFILE ? ENOBUFS : errno); /* not the program's own limit */
  if (is_open(fd)) return begin_relay(dial, fd);
  if (!loop_watch(&dial->opening, fd, EPOLLOUT)) return fail(dial, ENOBUFS);
  loop_after(&dial->timer, HELD_MS);
}

static void reached(struct dial *dial) {
  loop_events(&dial->socks, 0);
  dial->dialled = true;
  dial->give_up_ms = loop_now_ms() + HELD_MS;
  if (set.mode != MN_MODE_DIALLED) return try_to_open(dial);
  struct mn_reply reply = {.magic = MN_MAGIC, .mode = set.mode};
  if (dial->waiting) client_answer(dial->waiting, &reply, true);
  dial->waiting = NULL;
  loop_after(&dial->timer, HELD_MS);
}

void dial_accepted(int fd, const struct mn_address *from) {
  for (struct dial *dial = dials; dial; dial = dial->next) {
    struct sockaddr_storage sa;
    struct mn_address name;
    socklen_t len = sizeof sa;
    if (dial->held < 0 || !dial->dialled) continue;
    if (getsockname(dial->held, (struct sockaddr *)&sa, &len) != 0 || !mn_from_sockaddr(&sa, len, &name)) continue;
    if (name.port == from->port && mn_same_ip(&name, from)) return begin_relay(dial, fd);
  }
  close(fd);
}

static void take_reply(struct dial *dial) {
  for (;;) {
    size_t need;
    unsigned code;
    switch (mn_socks_reply(dial->reply, dial->reply_len, &need, &code)) {
      case MN_SOCKS_OPEN:
        return tailscaled_has(dial->socks.fd, set.socks_port) ? reached(dial) : fail(dial, ENETDOWN);
      case MN_SOCKS_REFUSED:
        return fail(dial, mn_socks_errno(code, (long)(loop_now_ms() - dial->began_ms), SOCKS_LIMIT_MS));
      case MN_SOCKS_BROKEN:
        return fail(dial, EPROTO);
      case MN_SOCKS_MORE:
        break;
    }
    ssize_t n = recv(dial->socks.fd, dial->reply + dial->reply_len, need, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return fail(dial, ENETDOWN); /* tailscaled has died */
    dial->reply_len += (size_t)n;
  }
}

static bool send_request(struct dial *dial) {
  unsigned char request[MN_SOCKS_REQUEST_MAX];
  size_t len = mn_socks_request(&dial->to, request);
  /* A new connection has room for it. */
  return send(dial->socks.fd, request, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static void socks_ready(struct watch *watch, uint32_t events) {
  struct dial *dial = MEMBER_OF(watch, struct dial, socks);
  int error = 0;
  socklen_t len = sizeof error;
  if (dial->dialled) return;
  if (dial->reply_len == 0 && events & (EPOLLERR | EPOLLOUT)) {
    getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) return fail(dial, dial->own ? error : ENETDOWN);
    if (dial->own) return reached(dial);
    no_delay(watch->fd);
    if (!send_request(dial)) return fail(dial, ENETDOWN);
    loop_events(watch, EPOLLIN);
    return;
  }
  take_reply(dial);
}

/* Connect to the proxy, or to a port of this machine. */
static void dial_out(struct dial *dial) {
  struct sockaddr_storage sa;
  struct mn_address to = mn_ipv4(INADDR_LOOPBACK, dial->own ? dial->to.port : set.socks_port);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fail(dial, ENOBUFS);
  if (dial->own) {
    struct mn_address from = mn_ipv4(dial->to.family == 6 ? MN_OWN6_SOURCE : MN_OWN4_SOURCE, 0);
    socklen_t len = mn_to_sockaddr(&from, AF_INET, &sa);
    if (bind(fd, (struct sockaddr *)&sa, len) != 0) {
      close(fd);
      return fail(dial, EADDRNOTAVAIL);
    }
  }
  socklen_t len = mn_to_sockaddr(&to, AF_INET, &sa);
  if (connect(fd, (struct sockaddr *)&sa, len) != 0 && errno != EINPROGRESS) {
    int why = dial->own ? errno : ENETDOWN;
    close(fd);
    return fail(dial, why);
  }
  if (!loop_watch(&dial->socks, fd, EPOLLOUT)) return fail(dial, ENOBUFS);
  loop_after(&dial->timer, DIAL_MS);
}

/* tailscaled sends connections to addresses of no peer over the machine's own network. That must not happen, so
 * meshnetd asks it for the peer first. */
static void check_done(struct query *query, int status, const char *body, size_t len) {
  struct dial *dial = MEMBER_OF(query, struct dial, query);
  struct mn_self found;
  dial->asking = false;
  if (status == 0) return fail(dial, errno == ETIMEDOUT ? ETIMEDOUT : ENETDOWN);
  if (status != 200 || !mn_whois_addresses(body, len, &found)) return fail(dial, EHOSTUNREACH);
  known_keep(&dial->to);
  dial_out(dial);
}

static void check(struct dial *dial) {
  char ip[46], path[96];
  mn_format_ip(&dial->to, ip);
  snprintf(path, sizeof path, "whois?addr=%s", ip);
  dial->query.done = check_done;
  dial->asking = true;
  if (query_start(&dial->query, path, CHECK_MS)) return;
  dial->asking = false;
  fail(dial, ENETDOWN);
}

static void due(struct timer *timer) {
  struct dial *dial = MEMBER_OF(timer, struct dial, timer);
  if (dial->error) return try_to_end(dial);
  if (!dial->dialled && dial->socks.fd < 0) {
    return dial->own || known_find(&dial->to) ? dial_out(dial) : check(dial);
  }
  if (dial->dialled && dial->opening.fd < 0 && set.mode != MN_MODE_DIALLED) return try_to_open(dial);
  fail(dial, ETIMEDOUT);
}

static bool has_room(uid_t uid) {
  unsigned of_uid = 0, pending_of_uid = 0, kept = uid == 0 ? 0 : ROOTS;
  for (const struct dial *dial = dials; dial; dial = dial->next) {
    of_uid += dial->uid == uid;
    pending_of_uid += dial->uid == uid && !dial->relaying;
  }
  return dial_count + kept < DIALS_MAX && pending_count + kept < PENDING_MAX && of_uid < DIALS_MAX_OF_UID &&
         pending_of_uid < PENDING_MAX_OF_UID;
}

static bool is_tcp(int fd) {
  int protocol = 0, family = 0;
  socklen_t len = sizeof protocol, family_len = sizeof family;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == IPPROTO_TCP &&
         getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &family_len) == 0 &&
         (family == AF_INET || family == AF_INET6);
}

/* An earlier attempt of the same socket must not open it for this one. */
static void supersede(uint64_t cookie) {
  for (struct dial *dial = dials, *next; dial; dial = next) {
    next = dial->next;
    if (dial->cookie == cookie && !dial->relaying) drop(dial);
  }
}

int dial_start(int fd, uid_t uid, const struct mn_address *to, struct client *waiting) {
  uint64_t cookie = is_tcp(fd) ? cookie_of(fd) : 0;
  int why = !cookie || hold_state(fd) != TCP_CLOSE ? EINVAL : 0;
  if (!why && !mn_is_tailnet(to)) why = ENETUNREACH;
  if (!why && !has_room(uid)) why = ENOBUFS;
  struct dial *dial = why ? NULL : calloc(1, sizeof *dial);
  if (!dial) {
    close_later(fd);
    return why ? why : ENOBUFS;
  }
  supersede(cookie);
  struct recent *place = recent_place(&sockets, cookie);
  place->error = 0;
  place->address = *to;
  dial->held = fd;
  dial->uid = uid;
  dial->cookie = cookie;
  dial->to = *to;
  dial->own = mn_is_own(own_addresses(), to);
  dial->waiting = waiting;
  dial->began_ms = loop_now_ms();
  dial->socks = (struct watch){.fd = -1, .ready = socks_ready};
  dial->opening = (struct watch){.fd = -1, .ready = opened};
  dial->timer.fire = due;
  dial->next = dials;
  dial->link = &dials;
  if (dials) dials->link = &dial->next;
  dials = dial;
  dial_count++;
  pending_count++;
  loop_after(&dial->timer, 0); /* after the answer to the program, which begins its connect then */
  return 0;
}

void dial_forget(const struct client *waiting) {
  for (struct dial *dial = dials; dial; dial = dial->next) {
    if (dial->waiting == waiting) dial->waiting = NULL;
  }
}
