/* What the library asks of meshnetd. Safe in signal handlers and threads; errno is kept unless a function says
 * otherwise. */
#ifndef MESHNET_CLIENT_H
#define MESHNET_CLIENT_H

#include <stdbool.h>

#include "address.h"

/* Hand over a socket that is about to connect. Returns the mode; 0 with errno on failure: ENETDOWN where meshnetd
 * does not run or does not answer. Waits for MN_PLACE_MS at most; where the mode is MN_MODE_DIALLED, for the
 * destination. */
unsigned mn_ask_connect(int fd, uint64_t cookie, const struct mn_address *to);

/* Why the last connect of a socket failed: an errno; 0 when meshnetd does not know of one. */
int mn_ask_result(uint64_t cookie);

/* Who is at the other end of a connection whose peer is on loopback. False where it is no machine of the tailnet. */
bool mn_ask_peer(uint64_t cookie, const struct mn_address *from, const struct mn_address *to, struct mn_reply *out);

#endif
