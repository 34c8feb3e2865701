/* What the library asks of meshnetd. Safe in signal handlers and threads; errno is kept except where it is told. */
#ifndef MESHNET_CLIENT_H
#define MESHNET_CLIENT_H

#include <stdbool.h>

#include "address.h"

/* Hand a socket over that is about to connect. The mode; 0 with errno when it cannot: ENETDOWN where meshnetd is away
 * or does not answer. Waits for MN_PLACE_MS at most; where the mode is MN_MODE_DIALLED, for the destination. */
unsigned mn_ask_connect(int fd, uint64_t cookie, const struct mn_address *to);

/* Why the last connect of a socket failed: an errno; 0 when meshnetd does not know of one. */
int mn_ask_result(uint64_t cookie);

/* Who is at the other end of a connection whose peer is on loopback. False where nobody of the tailnet is. */
bool mn_ask_peer(uint64_t cookie, const struct mn_address *from, const struct mn_address *to, struct mn_reply *out);

#endif
