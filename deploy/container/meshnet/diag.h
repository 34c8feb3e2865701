/* What the kernel says of a TCP connection of this machine (sock_diag). */
#ifndef MESHNET_DIAG_H
#define MESHNET_DIAG_H

#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"

enum diag_result {
  DIAG_FOUND,
  DIAG_NONE,    /* there is no such socket */
  DIAG_UNKNOWN, /* the kernel does not tell */
};

struct diag {
  uint64_t cookie;
  uid_t uid;
  uint32_t inode; /* 0: no process has it open any more */
};

/* The IPv4 socket, or IPv6 socket in its IPv4 form, at `from` that is connected to `to`. */
enum diag_result diag_find(const struct mn_address *from, const struct mn_address *to, struct diag *out);

#endif
