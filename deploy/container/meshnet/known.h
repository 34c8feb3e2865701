/* Destinations that a peer had, by tailscaled's last answer. */
#ifndef MESHNET_KNOWN_H
#define MESHNET_KNOWN_H

#include <stdbool.h>

#include "address.h"

/* Whether tailscaled has named a peer for this address within the last 2 s. Answers of an earlier process do not
 * count. */
bool known_find(const struct mn_address *ip);

/* tailscaled has just named a peer for it. */
void known_keep(const struct mn_address *ip);

#endif
