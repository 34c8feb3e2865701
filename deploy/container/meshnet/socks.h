/* SOCKS5 (RFC 1928) as a client without authentication. PURE: bytes in, bytes out. */
#ifndef MESHNET_SOCKS_H
#define MESHNET_SOCKS_H

#include <stddef.h>

#include "protocol.h"

#define MN_SOCKS_REQUEST_MAX 25
#define MN_SOCKS_REPLY_MAX (2 + 4 + 1 + 255 + 2)

/* The greeting and the request to connect in one piece, which saves a round trip. Its length; 0 for no address. */
size_t mn_socks_request(const struct mn_address *to, unsigned char out[MN_SOCKS_REQUEST_MAX]);

enum mn_socks_state { MN_SOCKS_MORE, MN_SOCKS_OPEN, MN_SOCKS_REFUSED, MN_SOCKS_BROKEN };

/* What the first `len` bytes of the answer say. For MN_SOCKS_MORE, `*need` is how many bytes may be read next without
 * taking any of what follows the answer; for MN_SOCKS_REFUSED, `*code` is the reply code of RFC 1928, never 0. */
enum mn_socks_state mn_socks_reply(const unsigned char *data, size_t len, size_t *need, unsigned *code);

/* The errno for a reply code. tailscaled answers all that fails with 1, and gives up by itself after `limit_ms`:
 * so what came before that was a refusal. */
int mn_socks_errno(unsigned code, long took_ms, long limit_ms);

#endif
