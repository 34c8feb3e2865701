#include "known.h"

#include <sys/types.h>

#include "loop.h"
#include "tailscaled.h"

enum { KNOWN_MS = 2000, KNOWN_MAX = 256 };

static struct {
  struct mn_address ip;
  int64_t until_ms;
  pid_t by;
} known[KNOWN_MAX];

static size_t place_of(const struct mn_address *ip) {
  uint32_t mixed = 0;
  for (int i = 0; i < (ip->family == 4 ? 4 : 16); i++) mixed = mixed * 31 + ip->ip[i];
  return mixed % KNOWN_MAX;
}

bool known_find(const struct mn_address *ip) {
  size_t i = place_of(ip);
  return known[i].until_ms > loop_now_ms() && mn_same_ip(&known[i].ip, ip) && known[i].by == tailscaled_pid();
}

void known_keep(const struct mn_address *ip) {
  size_t i = place_of(ip);
  known[i].ip = *ip;
  known[i].until_ms = loop_now_ms() + KNOWN_MS;
  known[i].by = tailscaled_pid();
}
