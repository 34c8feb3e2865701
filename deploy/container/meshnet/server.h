/* The socket on which libmeshnet asks. */
#ifndef MESHNET_SERVER_H
#define MESHNET_SERVER_H

#include <stdbool.h>

#include "protocol.h"

struct client;

/* Whether no other meshnetd listens at a path. False with errno. */
bool server_is_alone(const char *path);

/* Listen at a path. False with errno. `mode` is what is answered to MN_CONNECT. */
bool server_start(const char *path, unsigned mode);

/* Answer; a client that has nothing more to expect is closed. */
void client_answer(struct client *client, const struct mn_reply *reply, bool last);

#endif
