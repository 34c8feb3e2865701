/* Addresses of the tailnet and of loopback, and their forms. PURE: no system calls; safe in signal handlers. */
#ifndef MESHNET_ADDRESS_H
#define MESHNET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "protocol.h"

/* Connections of a machine to its own tailnet address begin at these, so that the accepting side knows them. */
#define MN_OWN4_SOURCE 0x7f644001u /* 127.100.64.1 */
#define MN_OWN6_SOURCE 0x7f644002u /* 127.100.64.2 */

struct mn_self {
  struct mn_address v4; /* family 0: none; port 0 */
  struct mn_address v6;
};

/* The address in a sockaddr; an IPv4-mapped IPv6 address counts as IPv4. False when it is neither or too short. */
bool mn_from_sockaddr(const void *sa, size_t len, struct mn_address *out);

/* Write an address in the form of a family: AF_INET, or AF_INET6 (IPv4 is mapped then). The length of the form; 0 when
 * it has none in that family. */
socklen_t mn_to_sockaddr(const struct mn_address *address, int family, struct sockaddr_storage *out);

struct mn_address mn_ipv4(uint32_t host_order, uint16_t network_port);
bool mn_same_ip(const struct mn_address *a, const struct mn_address *b);

/* 100.64.0.0/10, or fd7a:115c:a1e0::/48. */
bool mn_is_tailnet(const struct mn_address *address);
/* 127.0.0.0/8. */
bool mn_is_loopback4(const struct mn_address *address);
bool mn_is_ipv4(const struct mn_address *address, uint32_t host_order);

/* An address as text, without a port, of at most `len` bytes; anything else in them makes it false. */
bool mn_parse_ip(const char *text, size_t len, struct mn_address *out);
/* The text of an address without its port. `out` has room for 46 bytes. */
void mn_format_ip(const struct mn_address *address, char *out);

/* The content of the file `self`: lines with an address of the tailnet each. Other lines do not count. */
struct mn_self mn_parse_self(const char *text, size_t len);
/* Whether an address is one of the machine's own; a port does not matter. */
bool mn_is_own(const struct mn_self *self, const struct mn_address *address);

#endif
