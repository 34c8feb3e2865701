/* The fuzzer's target: each kind of input that comes from outside, by its first byte. With clang:
 *   clang -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz_inputs.c address.c answer.c socks.c
 * With gcc, tests/mutate.c drives it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "address.h"
#include "answer.h"
#include "socks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void require(bool good) {
  if (!good) abort();
}

static void socks(const uint8_t *data, size_t len) {
  size_t have = 0, need;
  unsigned code;
  for (;;) {
    switch (mn_socks_reply(data, have, &need, &code)) {
      case MN_SOCKS_MORE:
        require(need > 0 && have + need <= MN_SOCKS_REPLY_MAX);
        if (have + need > len) return;
        have += need;
        break;
      case MN_SOCKS_REFUSED:
        require(code != 0 && mn_socks_errno(code, 1, 2) != 0);
        return;
      case MN_SOCKS_OPEN:
      case MN_SOCKS_BROKEN:
        return;
    }
  }
}

static void are_of_the_tailnet(const struct mn_self *found) {
  require(!found->v4.family || (found->v4.family == 4 && mn_is_tailnet(&found->v4)));
  require(!found->v6.family || (found->v6.family == 6 && mn_is_tailnet(&found->v6)));
}

static void answers(const uint8_t *data, size_t len) {
  const char *body;
  size_t body_len;
  struct mn_self found;
  if (mn_http_status((const char *)data, len, &body, &body_len)) {
    require(body + body_len == (const char *)data + len);
    if (mn_whois_addresses(body, body_len, &found)) are_of_the_tailnet(&found);
    if (mn_status_addresses(body, body_len, &found)) are_of_the_tailnet(&found);
  }
  if (mn_whois_addresses((const char *)data, len, &found)) are_of_the_tailnet(&found);
}

static void addresses(const uint8_t *data, size_t len) {
  struct mn_address address, again;
  struct sockaddr_storage sa;
  struct mn_self self = mn_parse_self((const char *)data, len);
  are_of_the_tailnet(&self);
  if (!mn_from_sockaddr(data, len, &address)) return;
  socklen_t out = mn_to_sockaddr(&address, AF_INET6, &sa);
  require(out && mn_from_sockaddr(&sa, out, &again) && memcmp(&address, &again, sizeof again) == 0);
  char text[46];
  mn_format_ip(&address, text);
  require(mn_parse_ip(text, strlen(text), &again));
  unsigned char request[MN_SOCKS_REQUEST_MAX];
  require(mn_socks_request(&address, request) >= 13);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (len == 0) return 0;
  /* A copy of its own: a read past the end must be seen. */
  uint8_t *copy = malloc(len - 1 ? len - 1 : 1);
  if (!copy) return 0;
  memcpy(copy, data + 1, len - 1);
  switch (data[0] % 3) {
    case 0:
      socks(copy, len - 1);
      break;
    case 1:
      answers(copy, len - 1);
      break;
    default:
      addresses(copy, len - 1);
  }
  free(copy);
  return 0;
}
