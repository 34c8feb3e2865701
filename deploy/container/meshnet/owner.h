/* Whose socket it is. */
#ifndef MESHNET_OWNER_H
#define MESHNET_OWNER_H

#include <stdint.h>
#include <sys/types.h>

enum owner { OWNER_YES, OWNER_NO, OWNER_UNKNOWN };

/* Whether a process has a socket open. OWNER_UNKNOWN where this process may not see that: it needs the same user, and at
 * least the same capabilities. */
enum owner owner_has(pid_t pid, uint32_t inode);

#endif
