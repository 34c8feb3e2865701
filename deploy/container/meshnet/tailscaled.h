/* Which process tailscaled is. */
#ifndef MESHNET_TAILSCALED_H
#define MESHNET_TAILSCALED_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/types.h>

/* The process that runs; 0: not known. */
pid_t tailscaled_pid(void);

/* Whether a process of tailscaled's user has the other end of a connection to a port on 127.0.0.1. Any user may listen
 * on the proxy's port while tailscaled starts again. Ask when the connection has got an answer: then it is accepted, so
 * the kernel knows by which process. True where the kernel does not answer. */
bool tailscaled_has(int connection, in_port_t port);

#endif
