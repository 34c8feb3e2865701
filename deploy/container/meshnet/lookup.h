/* Who is at the other end of a connection that came in over loopback. */
#ifndef MESHNET_LOOKUP_H
#define MESHNET_LOOKUP_H

#include "localapi.h"
#include "protocol.h"

struct lookup {
  struct query query;
  uint64_t cookie; /* of the peer's socket; 0: not known */
  bool asking;
  void (*done)(struct lookup *lookup, const struct mn_address *v4, const struct mn_address *v6);
};

/* `done` is called once, with family 0 for nobody of the tailnet; perhaps before this returns. */
void lookup_start(struct lookup *lookup, const struct mn_address *from, const struct mn_address *to);
void lookup_cancel(struct lookup *lookup);

#endif
