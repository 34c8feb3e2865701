#include "diag.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "address.h"

static int netlink = -1;
static uint32_t seq_last;

static bool open_netlink(void) {
  if (netlink >= 0) return true;
  netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  /* The kernel answers within the call; the limit is for a kernel that does not answer at all. */
  struct timeval limit = {.tv_usec = 200000};
  if (netlink >= 0) setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return netlink >= 0;
}

static enum diag_result read_answer(uint32_t seq, struct diag *out) {
  union {
    struct nlmsghdr head;
    char room[4096];
  } answer;
  for (;;) {
    ssize_t n = recv(netlink, &answer, sizeof answer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < (ssize_t)sizeof answer.head) return DIAG_UNKNOWN;
    if (answer.head.nlmsg_seq != seq) continue;
    if (answer.head.nlmsg_type == NLMSG_ERROR && n >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr))) {
      return ((struct nlmsgerr *)NLMSG_DATA(&answer.head))->error == -ENOENT ? DIAG_NONE : DIAG_UNKNOWN;
    }
    if (answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg))) {
      return DIAG_UNKNOWN;
    }
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    out->cookie = (uint64_t)found->id.idiag_cookie[1] << 32 | found->id.idiag_cookie[0];
    out->uid = found->idiag_uid;
    out->inode = found->idiag_inode;
    return DIAG_FOUND;
  }
}

enum diag_result diag_find(const struct mn_address *from, const struct mn_address *to, struct diag *out) {
  struct {
    struct nlmsghdr head;
    struct inet_diag_req_v2 body;
  } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
      .body = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u},
  };
  if (!open_netlink()) return DIAG_UNKNOWN;
  request.head.nlmsg_seq = ++seq_last;
  request.body.id.idiag_sport = from->port;
  request.body.id.idiag_dport = to->port;
  memcpy(request.body.id.idiag_src, from->ip, 4);
  memcpy(request.body.id.idiag_dst, to->ip, 4);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(netlink, &request, sizeof request, 0) != (ssize_t)sizeof request) return DIAG_UNKNOWN;
  return read_answer(seq_last, out);
}

static bool ask_connecting(int family, uint32_t seq) {
  struct {
    struct nlmsghdr head;
    struct inet_diag_req_v2 body;
  } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY},
      .body = {.sdiag_family = (uint8_t)family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = 1u << TCP_SYN_SENT},
  };
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.head.nlmsg_seq = seq;
  return send(netlink, &request, sizeof request, 0) == (ssize_t)sizeof request;
}

/* An address in a dump: plain, or mapped into IPv6. */
static struct mn_address dumped(int family, const uint32_t words[4], in_port_t port) {
  struct mn_address address = {.family = 4, .port = port};
  memcpy(address.ip, family == AF_INET6 ? &words[3] : &words[0], 4);
  return address;
}

static void take_connecting(const struct inet_diag_msg *one, in_port_t port,
                            void (*found)(const struct mn_address *from)) {
  struct mn_address to = dumped(one->idiag_family, one->id.idiag_dst, one->id.idiag_dport);
  struct mn_address from = dumped(one->idiag_family, one->id.idiag_src, one->id.idiag_sport);
  if (to.port == port && mn_is_ipv4(&to, INADDR_LOOPBACK)) found(&from);
}

static bool read_connecting(uint32_t seq, in_port_t port, void (*found)(const struct mn_address *from)) {
  union {
    struct nlmsghdr head;
    char room[32768];
  } answer;
  for (;;) {
    ssize_t n = recv(netlink, &answer, sizeof answer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    size_t left = (size_t)n;
    for (const struct nlmsghdr *head = &answer.head; NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
      if (head->nlmsg_seq != seq) continue;
      if (head->nlmsg_type == NLMSG_DONE) return true;
      if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY || head->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg))) {
        return false;
      }
      take_connecting(NLMSG_DATA(head), port, found);
    }
  }
}

bool diag_connecting(in_port_t port, void (*found)(const struct mn_address *from)) {
  if (!open_netlink()) return false;
  bool ok = ask_connecting(AF_INET, ++seq_last) && read_connecting(seq_last, port, found);
  return ok && ask_connecting(AF_INET6, ++seq_last) && read_connecting(seq_last, port, found);
}
