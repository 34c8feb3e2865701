/* The machine's own tailnet addresses, kept in the file `self`. */
#ifndef MESHNET_OWN_H
#define MESHNET_OWN_H

#include "address.h"

/* Ask tailscaled at intervals, and write the addresses to a file. */
void own_start(const char *path);
const struct mn_self *own_addresses(void);

#endif
