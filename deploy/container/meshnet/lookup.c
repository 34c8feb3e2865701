/* tailscaled connects to 127.0.0.1 on behalf of its peers, and LocalAPI's whois knows for which, by the port it
 * connects from. For a port that it did not connect from, whois waits some 0.2 s and holds up all of tailscaled
 * meanwhile; so it is asked only about sockets that are tailscaled's own. */
#include "lookup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "diag.h"
#include "process.h"
#include "recent.h"

enum {
  AGAIN_MS = 100,
  /* So often tailscaled, which itself looks for 0.2 s, may know nobody. */
  UNKNOWN_MAX = 3,
};

static struct recent_table peers;

static void keep(uint64_t cookie, const struct mn_self *found) {
  if (!cookie) return;
  struct recent *place = recent_place(&peers, cookie);
  place->address = found ? found->v4 : (struct mn_address){0};
  place->address6 = found ? found->v6 : (struct mn_address){0};
  place->nobody = !found;
}

static void ask(struct lookup *lookup);

static void ask_again(struct timer *timer) { ask(MEMBER_OF(timer, struct lookup, again)); }

/* The connection is tailscaled's, so somebody of the tailnet is there, except where a program went through its proxy. On a
 * busy machine tailscaled is late: it answers late, or has connected and not yet noted for whom. */
static void unanswered(struct lookup *lookup, bool nobody, const char *why) {
  lookup->unknown += nobody;
  if (lookup->unknown < UNKNOWN_MAX && loop_now_ms() + AGAIN_MS < lookup->end_ms) {
    lookup->again.fire = ask_again;
    return loop_after(&lookup->again, AGAIN_MS);
  }
  say_often("meshnetd: tailscaled does not tell who is at 127.0.0.1 port %u: %s", ntohs(lookup->port), why);
  if (nobody) keep(lookup->cookie, NULL);
  lookup->done(lookup, nobody ? 0 : EAGAIN, NULL);
}

static void whois_done(struct query *query, int status, const char *body, size_t len) {
  struct lookup *lookup = MEMBER_OF(query, struct lookup, query);
  struct mn_self found;
  lookup->asking = false;
  if (status != 200 || !mn_whois_addresses(body, len, &found)) {
    return unanswered(lookup, status == 404, status ? "it knows nobody there" : strerror(errno));
  }
  keep(lookup->cookie, &found);
  lookup->done(lookup, 0, &found);
}

static void ask(struct lookup *lookup) {
  int64_t left_ms = lookup->end_ms - loop_now_ms();
  char path[64];
  snprintf(path, sizeof path, "whois?proto=tcp&addr=127.0.0.1:%u", ntohs(lookup->port));
  lookup->query.done = whois_done;
  lookup->asking = query_start(&lookup->query, path, left_ms > 1 ? left_ms : 1);
  if (!lookup->asking) unanswered(lookup, false, strerror(errno));
}

void lookup_cancel(struct lookup *lookup) {
  if (lookup->asking) query_cancel(&lookup->query);
  lookup->asking = false;
  loop_cancel(&lookup->again);
}

static bool from_memory(struct lookup *lookup) {
  const struct recent *place = lookup->cookie ? recent_find(&peers, lookup->cookie) : NULL;
  if (!place) return false;
  struct mn_self found = {.v4 = place->address, .v6 = place->address6};
  lookup->done(lookup, 0, place->nobody ? NULL : &found);
  return true;
}

/* Whether the peer's socket is certainly none of tailscaled's. */
static bool is_foreign(enum diag_result result, const struct diag *peer) {
  struct ucred tailscaled;
  if (result == DIAG_NONE) return true;
  if (result == DIAG_UNKNOWN) return false;
  /* Nobody has it open any more: tailscaled has forgotten it before it closes one of its own. */
  if (peer->inode == 0) return true;
  if (!localapi_process(&tailscaled)) return false;
  return peer->uid != tailscaled.uid || process_has_socket(tailscaled.pid, peer->inode) == PROCESS_HAS_NOT;
}

void lookup_start(struct lookup *lookup, const struct mn_address *from, const struct mn_address *to) {
  struct diag peer = {0};
  lookup->asking = false;
  lookup->unknown = 0;
  lookup->end_ms = loop_now_ms() + MN_LOOKUP_MS;
  lookup->port = to->port;
  /* tailscaled connects from 127.0.0.1. The peer's socket is the one at `to`, connected to `from`. */
  enum diag_result result = mn_is_ipv4(to, INADDR_LOOPBACK) ? diag_find(to, from, &peer) : DIAG_NONE;
  lookup->cookie = result == DIAG_FOUND ? peer.cookie : 0;
  if (from_memory(lookup)) return;
  if (is_foreign(result, &peer)) {
    keep(lookup->cookie, NULL);
    return lookup->done(lookup, 0, NULL);
  }
  ask(lookup);
}
