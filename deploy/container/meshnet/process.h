/* What /proc says of a process. */
#ifndef MESHNET_PROCESS_H
#define MESHNET_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum process_has { PROCESS_HAS, PROCESS_HAS_NOT, PROCESS_HIDDEN };

/* Whether a process has a socket open. PROCESS_HIDDEN without permission to see that: it needs the same user, and at
 * least the same capabilities. */
enum process_has process_has_socket(pid_t pid, uint32_t inode);

/* Whether a process runs. One that is ending, and closes what it has open, does not. */
bool process_runs(pid_t pid);

#endif
