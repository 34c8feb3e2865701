#include "recent.h"

#include <string.h>

static size_t set_of(uint64_t cookie) { return (size_t)((cookie * 0x9e3779b97f4a7c15u) >> 54) % RECENT_SETS; }

const struct recent *recent_find(const struct recent_table *table, uint64_t cookie) {
  const struct recent *set = table->places[set_of(cookie)];
  for (int i = 0; i < RECENT_WAYS; i++) {
    if (set[i].used && set[i].cookie == cookie) return &set[i];
  }
  return NULL;
}

struct recent *recent_place(struct recent_table *table, uint64_t cookie) {
  struct recent *set = table->places[set_of(cookie)];
  struct recent *found = &set[0];
  for (int i = 0; i < RECENT_WAYS; i++) {
    if (set[i].used && set[i].cookie == cookie) {
      set[i].used = ++table->writes;
      return &set[i];
    }
    if (set[i].used < found->used) found = &set[i];
  }
  memset(found, 0, sizeof *found);
  found->cookie = cookie;
  found->used = ++table->writes;
  return found;
}
