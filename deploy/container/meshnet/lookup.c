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

static struct recent_table peers;

static void keep(uint64_t cookie, const struct mn_self *found) {
  if (!cookie) return;
  struct recent *place = recent_place(&peers, cookie);
  place->address = found ? found->v4 : (struct mn_address){0};
  place->address6 = found ? found->v6 : (struct mn_address){0};
  place->nobody = !found;
}

static void whois_done(struct query *query, int status, const char *body, size_t len) {
  struct lookup *lookup = MEMBER_OF(query, struct lookup, query);
  struct mn_self found;
  bool known = status == 200 && mn_whois_addresses(body, len, &found);
  lookup->asking = false;
  if (known || status == 404) keep(lookup->cookie, known ? &found : NULL);
  lookup->done(lookup, known || status == 404 ? 0 : EAGAIN, known ? &found : NULL);
}

void lookup_cancel(struct lookup *lookup) {
  if (lookup->asking) query_cancel(&lookup->query);
  lookup->asking = false;
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
  char path[64];
  lookup->asking = false;
  /* tailscaled connects from 127.0.0.1. The peer's socket is the one at `to`, connected to `from`. */
  enum diag_result result = mn_is_ipv4(to, INADDR_LOOPBACK) ? diag_find(to, from, &peer) : DIAG_NONE;
  lookup->cookie = result == DIAG_FOUND ? peer.cookie : 0;
  if (from_memory(lookup)) return;
  if (is_foreign(result, &peer)) {
    keep(lookup->cookie, NULL);
    return lookup->done(lookup, 0, NULL);
  }
  snprintf(path, sizeof path, "whois?proto=tcp&addr=127.0.0.1:%u", ntohs(to->port));
  lookup->query.done = whois_done;
  if (!query_start(&lookup->query, path, MN_LOOKUP_MS)) return lookup->done(lookup, EAGAIN, NULL);
  lookup->asking = true;
}
