#include "address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static const uint8_t MAPPED[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
static const uint8_t TAILNET6[6] = {0xfd, 0x7a, 0x11, 0x5c, 0xa1, 0xe0};

static uint32_t host_order(const struct mn_address *address) {
  return (uint32_t)address->ip[0] << 24 | (uint32_t)address->ip[1] << 16 | (uint32_t)address->ip[2] << 8 |
         address->ip[3];
}

bool mn_from_sockaddr(const void *sa, size_t len, struct mn_address *out) {
  sa_family_t family;
  if (!sa || len < sizeof family) return false;
  memcpy(&family, sa, sizeof family);
  memset(out, 0, sizeof *out);
  if (family == AF_INET && len >= sizeof(struct sockaddr_in)) {
    struct sockaddr_in in;
    memcpy(&in, sa, sizeof in);
    out->family = 4;
    out->port = in.sin_port;
    memcpy(out->ip, &in.sin_addr, 4);
    return true;
  }
  /* The kernel takes an IPv6 address without its scope too. */
  if (family == AF_INET6 && len >= offsetof(struct sockaddr_in6, sin6_scope_id)) {
    struct sockaddr_in6 in;
    memcpy(&in, sa, offsetof(struct sockaddr_in6, sin6_scope_id));
    bool mapped = memcmp(&in.sin6_addr, MAPPED, sizeof MAPPED) == 0;
    out->family = mapped ? 4 : 6;
    out->port = in.sin6_port;
    memcpy(out->ip, (const uint8_t *)&in.sin6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    return true;
  }
  return false;
}

socklen_t mn_to_sockaddr(const struct mn_address *address, int family, struct sockaddr_storage *out) {
  memset(out, 0, sizeof *out);
  if (family == AF_INET && address->family == 4) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = address->port};
    memcpy(&in.sin_addr, address->ip, 4);
    memcpy(out, &in, sizeof in);
    return sizeof in;
  }
  if (family == AF_INET6 && (address->family == 4 || address->family == 6)) {
    struct sockaddr_in6 in = {.sin6_family = AF_INET6, .sin6_port = address->port};
    uint8_t *ip = (uint8_t *)&in.sin6_addr;
    if (address->family == 4) {
      memcpy(ip, MAPPED, sizeof MAPPED);
      memcpy(ip + 12, address->ip, 4);
    } else {
      memcpy(ip, address->ip, 16);
    }
    memcpy(out, &in, sizeof in);
    return sizeof in;
  }
  return 0;
}

struct mn_address mn_ipv4(uint32_t ip, uint16_t network_port) {
  struct mn_address address = {.family = 4, .port = network_port};
  for (int i = 0; i < 4; i++) address.ip[i] = (uint8_t)(ip >> (24 - 8 * i));
  return address;
}

bool mn_same_ip(const struct mn_address *a, const struct mn_address *b) {
  return a->family == b->family && memcmp(a->ip, b->ip, a->family == 4 ? 4 : 16) == 0;
}

bool mn_is_tailnet(const struct mn_address *address) {
  if (address->family == 4) return (host_order(address) & 0xffc00000u) == 0x64400000u;
  return address->family == 6 && memcmp(address->ip, TAILNET6, sizeof TAILNET6) == 0;
}

bool mn_is_loopback4(const struct mn_address *address) { return address->family == 4 && address->ip[0] == 127; }

bool mn_is_ipv4(const struct mn_address *address, uint32_t ip) {
  return address->family == 4 && host_order(address) == ip;
}

bool mn_parse_ip(const char *text, size_t len, struct mn_address *out) {
  char copy[INET6_ADDRSTRLEN];
  memset(out, 0, sizeof *out);
  if (len == 0 || len >= sizeof copy || memchr(text, 0, len)) return false;
  memcpy(copy, text, len);
  copy[len] = 0;
  if (inet_pton(AF_INET, copy, out->ip) == 1) {
    out->family = 4;
  } else if (inet_pton(AF_INET6, copy, out->ip) == 1) {
    out->family = 6;
  }
  return out->family != 0;
}

void mn_format_ip(const struct mn_address *address, char *out) {
  out[0] = 0;
  inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->ip, out, INET6_ADDRSTRLEN);
}

struct mn_self mn_parse_self(const char *text, size_t len) {
  struct mn_self self = {0};
  while (len > 0) {
    const char *end = memchr(text, '\n', len);
    size_t line = end ? (size_t)(end - text) : len;
    struct mn_address address;
    if (mn_parse_ip(text, line, &address) && mn_is_tailnet(&address)) {
      struct mn_address *place = address.family == 4 ? &self.v4 : &self.v6;
      if (!place->family) *place = address;
    }
    size_t taken = end ? line + 1 : line;
    text += taken;
    len -= taken;
  }
  return self;
}

bool mn_is_own(const struct mn_self *self, const struct mn_address *address) {
  return (self->v4.family && mn_same_ip(&self->v4, address)) || (self->v6.family && mn_same_ip(&self->v6, address));
}
