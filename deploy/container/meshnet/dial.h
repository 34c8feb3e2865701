/* A program's connection to the tailnet: its socket, the destination, and how they come together. */
#ifndef MESHNET_DIAL_H
#define MESHNET_DIAL_H

#include <netinet/in.h>
#include <sys/types.h>

#include "protocol.h"

struct client;

struct dial_settings {
  unsigned mode;
  in_port_t socks_port; /* on 127.0.0.1, in network order */
};

void dial_settings(struct dial_settings settings);

/* Begin for a program's socket, which is the dial's from now on. An errno when it cannot begin. In MN_MODE_DIALLED
 * client_answer is called with the outcome, unless dial_forget comes first. */
int dial_start(int fd, uid_t uid, const struct mn_address *to, struct client *waiting);
void dial_forget(const struct client *waiting);

/* A socket that connected to the port, in MN_MODE_DIALLED. */
void dial_accepted(int fd, const struct mn_address *from);

/* Where a program's socket is connected; NULL: not known. */
const struct mn_address *dial_destination(uint64_t cookie);

/* Why the last connect of a program's socket failed; 0: not known. */
int dial_error(uint64_t cookie);

#endif
