/* The small files of MN_DIRECTORY. Safe in signal handlers. */
#ifndef MESHNET_FILES_H
#define MESHNET_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "address.h"

/* Whether the machine uses meshnet: MN_DIRECTORY exists, and MESHNET is not off. */
bool mn_active(void);
/* The machine's own addresses; none while they are not known. */
struct mn_self mn_self(void);
/* The machine's name, at most 64 bytes and a NUL; its length, 0 when it has none. */
size_t mn_hostname(char out[65]);

#endif
