/* Bounded memory of sockets by their SO_COOKIE, which no other socket ever has: the oldest of a set makes room. */
#ifndef MESHNET_RECENT_H
#define MESHNET_RECENT_H

#include <stdbool.h>

#include "address.h"

struct recent {
  uint64_t cookie;
  uint64_t used;      /* when it was last written, counted in writes; 0: free */
  int error;          /* why its last connect failed; 0: it did not */
  bool nobody;        /* it is no machine of the tailnet */
  struct mn_address address;
  struct mn_address address6;
};

enum { RECENT_SETS = 1024, RECENT_WAYS = 4 };

struct recent_table {
  uint64_t writes;
  struct recent places[RECENT_SETS][RECENT_WAYS];
};

const struct recent *recent_find(const struct recent_table *table, uint64_t cookie);
/* The place for a cookie: the one it has, or an emptied one. */
struct recent *recent_place(struct recent_table *table, uint64_t cookie);

#endif
