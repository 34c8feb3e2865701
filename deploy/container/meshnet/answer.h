/* The answers of tailscaled's LocalAPI: bounded HTTP and JSON. PURE. */
#ifndef MESHNET_ANSWER_H
#define MESHNET_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "address.h"

/* The largest answer that is read. whois of a node with many capabilities has some 10 KiB. */
#define MN_ANSWER_MAX (256 * 1024)

/* The status of a whole HTTP/1.x answer, and where its body is; 0 when it is none. Only what HTTP/1.0 allows: a body
 * that ends with the connection. */
int mn_http_status(const char *data, size_t len, const char **body, size_t *body_len);

/* The node's addresses in the body of whois: Node.Addresses, each with a prefix length. False when it has none. */
bool mn_whois_addresses(const char *json, size_t len, struct mn_self *out);

/* The machine's own addresses in the body of status: Self.TailscaleIPs. False when it has none. */
bool mn_status_addresses(const char *json, size_t len, struct mn_self *out);

#endif
