/* The port that holds connecting sockets in SYN_SENT until meshnetd opens or ends them. */
#ifndef MESHNET_HOLD_H
#define MESHNET_HOLD_H

#include <stdbool.h>

#include "loop.h"
#include "protocol.h"

/* Listen on 127.0.0.1:MN_HOLD_PORT, and try on this kernel what depends on it. The mode: the first that the kernel
 * allows and that is not before `wanted` (0: any); 0 with errno when the port cannot be had. In MN_MODE_DIALLED,
 * `accepting` is called with each socket that connects. */
unsigned hold_start(unsigned wanted, void (*accepting)(int fd, const struct mn_address *from));

/* The state of a TCP socket, as TCP_SYN_SENT and so on; 0: it has none. */
int hold_state(int fd);

/* Open a held socket from the other side: a connected, or connecting, non-blocking socket; -1 with errno. */
int hold_open(int held);

/* A held socket's own address. */
bool hold_name(int held, struct mn_address *out);

/* End a held socket: its program sees ECONNRESET. False with errno. */
bool hold_end(int held);

/* End the held socket with this address, without the socket itself: its program sees ECONNRESET, a second later at
 * most. */
bool hold_break(const struct mn_address *held);

#endif
