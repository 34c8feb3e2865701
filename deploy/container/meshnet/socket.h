/* What the library needs to know of a socket. All calls go to the kernel; errno is kept. */
#ifndef MESHNET_SOCKET_H
#define MESHNET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "address.h"

/* A socket that belongs to the tailnet has a mark in the kernel: a least TTL that no packet on loopback is below.
 * Unlike anything in this process's memory it outlives exec, and is there in each process that has the socket. */
enum mn_mark { MN_UNMARKED = 0, MN_MARK4 = 3, MN_MARK6 = 4 };

enum mn_mark mn_mark_for(const struct mn_address *address);

/* AF_INET or AF_INET6; 0 for other sockets and for what is no socket. */
int mn_socket_family(int fd);
bool mn_socket_is_tcp(int fd);
/* The state, as TCP_ESTABLISHED and so on; 0 when it has none. */
int mn_socket_state(int fd);
uint64_t mn_socket_cookie(int fd);
enum mn_mark mn_socket_marked(int fd);
void mn_socket_mark(int fd, enum mn_mark mark);
/* Let an IPv6 socket use IPv4 addresses too. */
void mn_socket_allow_ipv4(int fd);
/* Its own address, and its peer's, as the kernel has them. False when it has none. */
bool mn_socket_name(int fd, struct mn_address *out);
bool mn_socket_peer(int fd, struct mn_address *out);

#endif
