/* The protocol between libmeshnet and meshnetd: one request and one reply of fixed size for each connection to
 * meshnetd's socket (SOCK_SEQPACKET). Numbers have the machine's byte order; ports and addresses have the network's. */
#ifndef MESHNET_PROTOCOL_H
#define MESHNET_PROTOCOL_H

#include <stdint.h>

#define MN_DIRECTORY "/run/meshnet"
#define MN_SOCKET_NAME "meshnetd.sock"
#define MN_SELF_NAME "self"
#define MN_HOSTNAME_NAME "hostname"

/* The port on 127.0.0.1 to which a socket connects in place of a tailnet address. */
#define MN_HOLD_PORT 1056

/* How long the library waits for meshnetd, in ms: for an accepted request, and for the true peer of a connection.
 * meshnetd itself answers within MN_LOOKUP_MS, also when tailscaled does not. */
#define MN_PLACE_MS 2000
#define MN_LOOKUP_MS 5000
#define MN_PEER_MS 6000

#define MN_MAGIC 0x4d4e3031u

enum mn_kind {
  MN_CONNECT = 1, /* with the socket as SCM_RIGHTS; `to` is its destination. The reply has the mode */
  MN_RESULT = 2,  /* why the last connect of the socket with this cookie failed */
  MN_PEER = 3,    /* who is at the other end of the connection `from` (its own address) to `to` (its peer's) */
};

enum mn_mode {
  MN_MODE_HOLD = 1,    /* connect to MN_HOLD_PORT now: the kernel holds the socket in SYN_SENT until the outcome */
  MN_MODE_POLL = 2,    /* the same, but wait in poll, never in a blocking connect: the kernel cannot end that */
  MN_MODE_DIALLED = 3, /* wait for a second reply; then the destination is reached, and MN_HOLD_PORT accepts at once */
};

/* An address. `family` is 4 or 6, 0 for none; an IPv4 address has the first four bytes. */
struct mn_address {
  uint8_t family;
  uint8_t reserved;
  uint16_t port;
  uint8_t ip[16];
};

struct mn_request {
  uint32_t magic;
  uint32_t kind;
  uint64_t cookie; /* SO_COOKIE of the socket */
  struct mn_address from;
  struct mn_address to;
};

struct mn_reply {
  uint32_t magic;
  int32_t error; /* an errno; 0: none. For MN_RESULT, the one that was asked for; for MN_PEER, EAGAIN: not known now */
  uint32_t mode;
  struct mn_address address;  /* the peer's IPv4 address; family 0: none. Port 0: the one that the kernel tells */
  struct mn_address address6; /* its IPv6 address */
};

#endif
