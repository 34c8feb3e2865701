/* Who is at the other end of a connection that came in over loopback. */
#ifndef MESHNET_LOOKUP_H
#define MESHNET_LOOKUP_H

#include "localapi.h"
#include "protocol.h"

struct lookup {
  struct query query;
  uint64_t cookie; /* of the peer's socket; 0: not known */
  bool asking;
  /* `found` is NULL where nobody of the tailnet is there, or, with an error, where that is not known now. */
  void (*done)(struct lookup *lookup, int error, const struct mn_self *found);
};

/* `done` is called once, perhaps before this returns. */
void lookup_start(struct lookup *lookup, const struct mn_address *from, const struct mn_address *to);
void lookup_cancel(struct lookup *lookup);

#endif
