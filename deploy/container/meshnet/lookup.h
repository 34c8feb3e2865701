/* Who is at the other end of a connection that came in over loopback. */
#ifndef MESHNET_LOOKUP_H
#define MESHNET_LOOKUP_H

#include <netinet/in.h>

#include "localapi.h"
#include "loop.h"
#include "protocol.h"

struct lookup {
  struct query query;
  uint64_t cookie; /* of the peer's socket; 0: not known */
  in_port_t port; /* of the peer */
  unsigned unknown; /* how often tailscaled has said that it knows nobody there */
  int64_t end_ms;
  struct timer again;
  bool asking;
  /* `found` is NULL where nobody of the tailnet is there, or, with an error, where that is not known now. */
  void (*done)(struct lookup *lookup, int error, const struct mn_self *found);
};

/* `done` is called once, perhaps before this returns. */
void lookup_start(struct lookup *lookup, const struct mn_address *from, const struct mn_address *to);
void lookup_cancel(struct lookup *lookup);

#endif
