/* The peers of sockets that this process has asked for, by SO_COOKIE: which no other socket ever has. Bounded; safe in
 * signal handlers and threads, without locks. */
#ifndef MESHNET_PEERS_H
#define MESHNET_PEERS_H

#include <stdbool.h>

#include "address.h"

struct mn_peer {
  bool known;                /* whether it is a machine of the tailnet */
  struct mn_address address; /* IPv4; family 0: none. Port 0: the one that the kernel tells */
  struct mn_address address6;
};

bool mn_peers_find(uint64_t cookie, struct mn_peer *out);
void mn_peers_keep(uint64_t cookie, const struct mn_peer *peer);

#endif
