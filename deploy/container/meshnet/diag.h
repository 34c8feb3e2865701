/* What the kernel says of a TCP connection of this machine (sock_diag). */
#ifndef MESHNET_DIAG_H
#define MESHNET_DIAG_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"

enum diag_result {
  DIAG_FOUND,
  DIAG_NONE,    /* there is no such socket */
  DIAG_UNKNOWN, /* the kernel does not answer */
};

struct diag {
  uint64_t cookie;
  uid_t uid;
  uint32_t inode; /* 0: no process has it open any more */
};

/* The IPv4 socket, or IPv6 socket in its IPv4 form, at `from` that is connected to `to`. */
enum diag_result diag_find(const struct mn_address *from, const struct mn_address *to, struct diag *out);

/* Call with the address of each socket in SYN_SENT to a port of 127.0.0.1 (network order); IPv6 sockets that use IPv4
 * too. False where the kernel does not answer. */
bool diag_connecting(in_port_t port, void (*found)(const struct mn_address *from));

#endif
