#include "server.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "close_later.h"
#include "dial.h"
#include "lookup.h"

enum {
  CLIENTS_MAX = 2048,
  CLIENTS_MAX_OF_UID = 1024,
  /* Reserved for root. */
  CLIENTS_OF_ROOT = 256,
  /* Admitted before other work is done. */
  ADMIT_MAX = 64,
  /* The kernel's SCM_MAX_FD. One that it has no room for, it closes itself, which may take as long as its sender
   * likes. */
  PASSED_MAX = 253,
  BACKLOG = 4096,
  /* A client sends its request at once, and waits no longer than this for anything. */
  CLIENT_MS = 20000,
  /* The pause before the next accept when descriptors have run out. */
  PAUSE_MS = 100,
};

struct client {
  void *garbage;
  struct client *next, **link;
  struct watch watch;
  struct timer timer;
  uid_t uid;
  bool asked;
  struct lookup lookup;
};

static struct watch listener = {.fd = -1};
static struct timer pause_end;
static struct client *clients;
static unsigned client_count;
static unsigned connect_mode;

/* More requests, with more descriptors, may lie in its queue. */
static void end_connection(int fd) {
  shutdown(fd, SHUT_RDWR);
  close_later(fd);
}

static void client_close(struct client *client) {
  end_connection(loop_release(&client->watch));
  loop_cancel(&client->timer);
  lookup_cancel(&client->lookup);
  dial_forget(client);
  *client->link = client->next;
  if (client->next) client->next->link = client->link;
  client_count--;
  loop_free(client);
}

void client_answer(struct client *client, const struct mn_reply *reply, bool last) {
  bool sent = send(client->watch.fd, reply, sizeof *reply, MSG_NOSIGNAL) == (ssize_t)sizeof *reply;
  if (!sent || last) client_close(client);
}

static void answer_error(struct client *client, int error) {
  struct mn_reply reply = {.magic = MN_MAGIC, .error = error};
  client_answer(client, &reply, true);
}

/* The descriptor that came with a message; -1: none. All but the first are closed. */
static int passed_descriptor(struct msghdr *message) {
  int first = -1;
  for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      if (first < 0) {
        first = fd;
      } else {
        close_later(fd);
      }
    }
  }
  return first;
}

static void serve_connect(struct client *client, const struct mn_request *request, int fd) {
  struct mn_reply reply = {.magic = MN_MAGIC, .mode = connect_mode};
  bool stays = connect_mode == MN_MODE_DIALLED;
  reply.error = dial_start(fd, client->uid, &request->to, stays ? client : NULL);
  client_answer(client, &reply, reply.error || !stays);
}

static void serve_result(struct client *client, const struct mn_request *request) {
  answer_error(client, dial_error(request->cookie));
}

static void looked_up(struct lookup *lookup, int error, const struct mn_self *found) {
  struct client *client = MEMBER_OF(lookup, struct client, lookup);
  struct mn_reply reply = {.magic = MN_MAGIC, .error = error};
  if (found) {
    reply.address = found->v4;
    reply.address6 = found->v6;
  }
  client_answer(client, &reply, true);
}

static void serve_peer(struct client *client, const struct mn_request *request) {
  if (mn_is_ipv4(&request->to, INADDR_LOOPBACK) && request->to.port == htons(MN_HOLD_PORT)) {
    const struct mn_address *known = dial_destination(request->cookie);
    struct mn_reply reply = {.magic = MN_MAGIC};
    if (known) *(known->family == 6 ? &reply.address6 : &reply.address) = *known;
    client_answer(client, &reply, true);
    return;
  }
  if (!mn_is_loopback4(&request->from) || !mn_is_loopback4(&request->to)) return answer_error(client, EINVAL);
  client->lookup.done = looked_up;
  lookup_start(&client->lookup, &request->from, &request->to);
}

/* `lost`: a descriptor came, but there was no room for it. */
static void serve(struct client *client, const struct mn_request *request, int fd, bool lost) {
  client->asked = true;
  loop_events(&client->watch, 0); /* only its end is of interest now */
  if (request->kind == MN_CONNECT && fd < 0) return answer_error(client, lost ? ENOBUFS : EINVAL);
  if (request->kind == MN_CONNECT) return serve_connect(client, request, fd);
  close_later(fd);
  if (request->kind == MN_RESULT) return serve_result(client, request);
  if (request->kind == MN_PEER) return serve_peer(client, request);
  answer_error(client, EINVAL);
}

static void client_ready(struct watch *watch, uint32_t events) {
  struct client *client = MEMBER_OF(watch, struct client, watch);
  struct mn_request request;
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(PASSED_MAX * sizeof(int))];
  } control;
  struct iovec part = {.iov_base = &request, .iov_len = sizeof request};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  (void)events;
  if (client->asked) return client_close(client);
  ssize_t n = recvmsg(watch->fd, &message, MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  int fd = n >= 0 ? passed_descriptor(&message) : -1;
  if (n == (ssize_t)sizeof request && request.magic == MN_MAGIC && !(message.msg_flags & MSG_TRUNC)) {
    return serve(client, &request, fd, message.msg_flags & MSG_CTRUNC);
  }
  close_later(fd);
  client_close(client);
}

static void client_late(struct timer *timer) { client_close(MEMBER_OF(timer, struct client, timer)); }

static bool has_place(uid_t uid) {
  unsigned of_uid = 0, kept = uid == 0 ? 0 : CLIENTS_OF_ROOT;
  for (const struct client *client = clients; client; client = client->next) of_uid += client->uid == uid;
  return client_count + kept < CLIENTS_MAX && of_uid < CLIENTS_MAX_OF_UID;
}

static void admit(int fd) {
  struct ucred peer;
  socklen_t len = sizeof peer;
  bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;
  struct client *client = known && has_place(peer.uid) ? calloc(1, sizeof *client) : NULL;
  if (!client) return end_connection(fd);
  client->uid = peer.uid;
  client->watch = (struct watch){.fd = -1, .ready = client_ready};
  client->timer.fire = client_late;
  if (!loop_watch(&client->watch, fd, EPOLLIN)) {
    free(client);
    return;
  }
  client->next = clients;
  client->link = &clients;
  if (clients) clients->link = &client->next;
  clients = client;
  client_count++;
  loop_after(&client->timer, CLIENT_MS);
}

static void admit_again(struct timer *timer) {
  (void)timer;
  loop_events(&listener, EPOLLIN);
}

static void cannot_admit(struct watch *watch) {
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
  say_often("meshnetd: accept: %s", strerror(errno));
  loop_events(watch, 0);
  pause_end.fire = admit_again;
  loop_after(&pause_end, PAUSE_MS);
}

static void accept_clients(struct watch *watch, uint32_t events) {
  (void)events;
  for (int i = 0; i < ADMIT_MAX; i++) {
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return cannot_admit(watch);
    admit(fd);
  }
}

/* Whether another meshnetd serves a path. */
static bool is_served(const struct sockaddr_un *where) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  bool served = connect(fd, (const struct sockaddr *)where, sizeof *where) == 0 || errno == EAGAIN;
  close(fd);
  return served;
}

/* The path in the form of a socket's address. */
static bool place(const char *path, struct sockaddr_un *where) {
  *where = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof where->sun_path) {
    errno = ENAMETOOLONG;
    return false;
  }
  memcpy(where->sun_path, path, strlen(path) + 1);
  return true;
}

bool server_is_alone(const char *path) {
  struct sockaddr_un where;
  if (!place(path, &where)) return false;
  errno = EADDRINUSE;
  return !is_served(&where);
}

bool server_start(const char *path, unsigned mode) {
  struct sockaddr_un where;
  if (!place(path, &where)) return false;
  connect_mode = mode;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  unlink(path);
  if (bind(fd, (struct sockaddr *)&where, sizeof where) != 0 || chmod(path, 0666) != 0 || listen(fd, BACKLOG) != 0) {
    int why = errno;
    close(fd);
    errno = why;
    return false;
  }
  listener.ready = accept_clients;
  return loop_watch(&listener, fd, EPOLLIN);
}
