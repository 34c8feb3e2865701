#include "socks.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { VERSION = 5, NO_AUTHENTICATION = 0, CONNECT = 1, IPV4 = 1, NAME = 3, IPV6 = 4, METHOD_LEN = 2, HEAD_LEN = 4 };

size_t mn_socks_request(const struct mn_address *to, unsigned char out[MN_SOCKS_REQUEST_MAX]) {
  if (to->family != 4 && to->family != 6) return 0;
  size_t ip_len = to->family == 4 ? 4 : 16;
  const unsigned char head[7] = {VERSION, 1, NO_AUTHENTICATION, VERSION, CONNECT, 0, to->family == 4 ? IPV4 : IPV6};
  memcpy(out, head, sizeof head);
  memcpy(out + sizeof head, to->ip, ip_len);
  memcpy(out + sizeof head + ip_len, &to->port, 2);
  return sizeof head + ip_len + 2;
}

/* The length of the whole answer, as far as `len` bytes tell it; 0 when its address has no known type. */
static size_t whole_len(const unsigned char *data, size_t len) {
  size_t head = METHOD_LEN + HEAD_LEN;
  if (len < head) return head;
  switch (data[METHOD_LEN + 3]) {
    case IPV4:
      return head + 4 + 2;
    case IPV6:
      return head + 16 + 2;
    case NAME:
      return len < head + 1 ? head + 1 : head + 1 + data[head] + 2;
    default:
      return 0;
  }
}

enum mn_socks_state mn_socks_reply(const unsigned char *data, size_t len, size_t *need, unsigned *code) {
  *need = 0;
  *code = 0;
  if (len >= 1 && data[0] != VERSION) return MN_SOCKS_BROKEN;
  if (len >= 2 && data[1] != NO_AUTHENTICATION) return MN_SOCKS_BROKEN;
  if (len >= 3 && data[METHOD_LEN] != VERSION) return MN_SOCKS_BROKEN;
  if (len >= 4 && data[METHOD_LEN + 1] != 0) {
    *code = data[METHOD_LEN + 1];
    return MN_SOCKS_REFUSED;
  }
  size_t whole = whole_len(data, len);
  if (whole == 0) return MN_SOCKS_BROKEN;
  if (len < whole) {
    *need = whole - len;
    return MN_SOCKS_MORE;
  }
  return len == whole ? MN_SOCKS_OPEN : MN_SOCKS_BROKEN;
}

int mn_socks_errno(unsigned code, long took_ms, long limit_ms) {
  switch (code) {
    case 2:
      return EACCES;
    case 3:
      return ENETUNREACH;
    case 4:
      return EHOSTUNREACH;
    case 5:
      return ECONNREFUSED;
    case 6:
      return ETIMEDOUT;
    case 7:
    case 8:
      return EOPNOTSUPP;
    default:
      return took_ms < limit_ms ? ECONNREFUSED : ETIMEDOUT;
  }
}
