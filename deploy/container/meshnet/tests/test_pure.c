/* Unit tests of what makes no system calls. Ends with 0 when all hold; says which does not. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "address.h"
#include "answer.h"
#include "peers.h"
#include "recent.h"
#include "socks.h"

static int failed;

static void check(bool good, const char *what, int line) {
  if (good) return;
  fprintf(stderr, "line %d: not so: %s\n", line, what);
  failed = 1;
}

#define CHECK(what) check(what, #what, __LINE__)

static struct mn_address ip(const char *text) {
  struct mn_address address;
  CHECK(mn_parse_ip(text, strlen(text), &address));
  return address;
}

static void test_ranges(void) {
  static const char *const inside[] = {"100.64.0.0", "100.127.255.255", "100.100.100.100", "fd7a:115c:a1e0::",
                                       "fd7a:115c:a1e0:ffff:ffff:ffff:ffff:ffff"};
  static const char *const outside[] = {"100.63.255.255", "100.128.0.0", "127.0.0.1", "0.0.0.0", "fd7a:115c:a1e1::1",
                                        "fd7a:115c:a1df::1", "::1", "::ffff:100.64.0.1"};
  for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
    struct mn_address address = ip(inside[i]);
    check(mn_is_tailnet(&address), inside[i], __LINE__);
  }
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    struct mn_address address = ip(outside[i]);
    check(!mn_is_tailnet(&address), outside[i], __LINE__);
  }
  struct mn_address local = ip("127.9.9.9");
  CHECK(mn_is_loopback4(&local) && mn_is_ipv4(&local, 0x7f090909));
}

static void test_texts(void) {
  struct mn_address address;
  char text[46];
  static const char *const bad[] = {"", "1.2.3", "1.2.3.4 ", "fe80::1%eth0", "100.64.0.1/32",
                                    "1111:2222:3333:4444:5555:6666:7777:8888:9999:0000"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!mn_parse_ip(bad[i], strlen(bad[i]), &address));
  CHECK(!mn_parse_ip("1.2.3.4\0x", 9, &address));
  address = ip("fd7a:115c:a1e0::5");
  mn_format_ip(&address, text);
  CHECK(strcmp(text, "fd7a:115c:a1e0::5") == 0);
}

static void test_sockaddrs(void) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(80)};
  struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(81)};
  struct mn_address address;
  inet_pton(AF_INET, "100.64.0.7", &in.sin_addr);
  inet_pton(AF_INET6, "::ffff:100.64.0.8", &in6.sin6_addr);
  CHECK(mn_from_sockaddr(&in, sizeof in, &address) && address.family == 4 && address.port == htons(80));
  CHECK(!mn_from_sockaddr(&in, sizeof in - 1, &address) && !mn_from_sockaddr(&in, 0, &address));
  CHECK(!mn_from_sockaddr(NULL, 16, &address));
  CHECK(mn_from_sockaddr(&in6, sizeof in6, &address) && mn_is_ipv4(&address, 0x64400008));
  CHECK(mn_from_sockaddr(&in6, 24, &address) && !mn_from_sockaddr(&in6, 23, &address));
  struct sockaddr other = {.sa_family = AF_UNIX};
  CHECK(!mn_from_sockaddr(&other, sizeof other, &address));

  struct sockaddr_storage out;
  struct mn_address six = ip("fd7a:115c:a1e0::9"), four = ip("100.64.0.8");
  four.port = htons(81);
  CHECK(mn_to_sockaddr(&six, AF_INET, &out) == 0 && mn_to_sockaddr(&six, AF_INET6, &out) == sizeof in6);
  CHECK(mn_to_sockaddr(&four, AF_INET, &out) == sizeof in);
  CHECK(mn_to_sockaddr(&four, AF_INET6, &out) == sizeof in6 && memcmp(&out, &in6, sizeof in6) == 0);
  CHECK(mn_to_sockaddr(&four, AF_UNIX, &out) == 0);
}

static void test_self(void) {
  static const char text[] = "100.64.0.5\n8.8.8.8\nnonsense\nfd7a:115c:a1e0::5\n100.64.0.6";
  struct mn_self self = mn_parse_self(text, sizeof text - 1);
  struct mn_address first = ip("100.64.0.5"), second = ip("100.64.0.6"), six = ip("fd7a:115c:a1e0::5");
  CHECK(mn_is_own(&self, &first) && !mn_is_own(&self, &second) && mn_is_own(&self, &six));
  self = mn_parse_self("", 0);
  CHECK(!self.v4.family && !self.v6.family && !mn_is_own(&self, &first));
}

static void test_socks_request(void) {
  unsigned char out[MN_SOCKS_REQUEST_MAX];
  struct mn_address four = ip("100.64.0.5"), six = ip("fd7a:115c:a1e0::5"), none = {0};
  four.port = six.port = htons(0x1234);
  static const unsigned char want[] = {5, 1, 0, 5, 1, 0, 1, 100, 64, 0, 5, 0x12, 0x34};
  CHECK(mn_socks_request(&four, out) == sizeof want && memcmp(out, want, sizeof want) == 0);
  CHECK(mn_socks_request(&six, out) == 25 && out[6] == 4 && out[7] == 0xfd && out[23] == 0x12);
  CHECK(mn_socks_request(&none, out) == 0);
}

/* Feed an answer as a reader does that takes no more than it may. Where it ends is in `*taken`. */
static enum mn_socks_state feed(const unsigned char *data, size_t len, size_t *taken, unsigned *code) {
  size_t have = 0;
  for (;;) {
    size_t need;
    enum mn_socks_state state = mn_socks_reply(data, have, &need, code);
    *taken = have;
    if (state != MN_SOCKS_MORE) return state;
    if (have + need > len) return MN_SOCKS_MORE;
    have += need;
  }
}

static void test_socks_replies(void) {
  static const unsigned char open4[] = {5, 0, 5, 0, 0, 1, 1, 2, 3, 4, 5, 6, 'd', 'a', 't', 'a'};
  static const unsigned char open_name[] = {5, 0, 5, 0, 0, 3, 2, 'a', 'b', 5, 6, 'x'};
  static const unsigned char refused[] = {5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0};
  static const unsigned char method[] = {5, 0xff};
  static const unsigned char version[] = {4, 0, 5, 0, 0, 1};
  static const unsigned char type[] = {5, 0, 5, 0, 0, 9, 0, 0, 0, 0};
  size_t taken;
  unsigned code;
  CHECK(feed(open4, sizeof open4, &taken, &code) == MN_SOCKS_OPEN && taken == 12);
  CHECK(feed(open_name, sizeof open_name, &taken, &code) == MN_SOCKS_OPEN && taken == 11);
  CHECK(feed(refused, sizeof refused, &taken, &code) == MN_SOCKS_REFUSED && code == 1);
  CHECK(feed(refused, 3, &taken, &code) == MN_SOCKS_MORE);
  size_t need;
  CHECK(mn_socks_reply(method, 2, &need, &code) == MN_SOCKS_BROKEN);
  CHECK(feed(version, sizeof version, &taken, &code) == MN_SOCKS_BROKEN);
  CHECK(feed(type, sizeof type, &taken, &code) == MN_SOCKS_BROKEN);
}

static void test_socks_errors(void) {
  CHECK(mn_socks_errno(1, 10, 4900) == ECONNREFUSED && mn_socks_errno(1, 5001, 4900) == ETIMEDOUT);
  CHECK(mn_socks_errno(2, 0, 1) == EACCES && mn_socks_errno(3, 0, 1) == ENETUNREACH);
  CHECK(mn_socks_errno(4, 0, 1) == EHOSTUNREACH && mn_socks_errno(5, 0, 1) == ECONNREFUSED);
  CHECK(mn_socks_errno(6, 0, 1) == ETIMEDOUT && mn_socks_errno(200, 0, 1) == ECONNREFUSED);
}

static bool whois(const char *json, struct mn_self *out) { return mn_whois_addresses(json, strlen(json), out); }

static void test_whois(void) {
  struct mn_self found;
  struct mn_address four = ip("100.64.0.3"), six = ip("fd7a:115c:a1e0::3");
  CHECK(whois("{\"Node\":{\"ID\":7,\"Name\":\"a\\\"]}\",\"Tags\":[[{}],null,-1.5e3],\"Addresses\" : "
              "[\"100.64.0.3/32\", \"fd7a:115c:a1e0::3/128\"],\"More\":true},\"UserProfile\":{}}",
              &found));
  CHECK(mn_is_own(&found, &four) && mn_is_own(&found, &six));
  CHECK(whois("{\"CapMap\":{\"Node\":{\"Addresses\":[\"100.64.0.9/32\"]}},"
              "\"Node\":{\"Addresses\":[\"100.64.0.3\"]}}",
              &found));
  CHECK(mn_is_own(&found, &four));
  static const char *const bad[] = {
      "", "{", "[]", "null", "{\"Node\":null}", "{\"Node\":{}}", "{\"Node\":{\"Addresses\":[]}}",
      "{\"Node\":{\"Addresses\":[\"8.8.8.8/32\"]}}", "{\"Node\":{\"Addresses\":\"100.64.0.3\"}}",
      "{\"Node\":{\"Addresses\":[\"100.64.0.3/32", "{\"Node\":{\"Addresses\":[\"100.64.0.3\\", "{\"Node\" {}",
      "{\"Addresses\":[\"100.64.0.3\"]}", "{\"a\":}", "{\"a\":]", "{\"a\":1",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) check(!whois(bad[i], &found), bad[i], __LINE__);
  char deep[4096];
  memset(deep, '[', sizeof deep - 1);
  memcpy(deep, "{\"a\":", 5);
  deep[sizeof deep - 1] = 0;
  CHECK(!whois(deep, &found));
}

static void test_status(void) {
  static const char json[] = "{\"Version\":\"1\",\"Self\":{\"TailscaleIPs\":[\"100.64.0.3\"]},\"Peer\":{}}";
  struct mn_self found;
  CHECK(mn_status_addresses(json, sizeof json - 1, &found) && found.v4.family && !found.v6.family);
  CHECK(!mn_status_addresses("{\"Self\":{\"TailscaleIPs\":null}}", 31, &found));
}

static void test_http(void) {
  const char *body;
  size_t len;
  static const char good[] = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}";
  CHECK(mn_http_status(good, sizeof good - 1, &body, &len) == 200 && len == 2 && memcmp(body, "{}", 2) == 0);
  CHECK(mn_http_status(good, sizeof good - 5, &body, &len) == 0);
  static const char *const bad[] = {"", "HTTP/2 200\r\n\r\n", "HTTP/1.0 2x0 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n",
                                    "HTTP/1.0200 OK \r\n\r\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    check(mn_http_status(bad[i], strlen(bad[i]), &body, &len) == 0, bad[i], __LINE__);
  }
}

static void test_recent(void) {
  static struct recent_table table;
  CHECK(!recent_find(&table, 5));
  recent_place(&table, 5)->error = 7;
  CHECK(recent_find(&table, 5)->error == 7);
  for (uint64_t cookie = 100; cookie < 20000; cookie++) recent_place(&table, cookie)->error = (int)cookie;
  CHECK(recent_find(&table, 19999)->error == 19999 && !recent_find(&table, 100));
  unsigned kept = 0;
  for (uint64_t cookie = 0; cookie < 20000; cookie++) kept += recent_find(&table, cookie) != NULL;
  CHECK(kept <= RECENT_SETS * RECENT_WAYS && kept > RECENT_SETS);
  recent_place(&table, 19999)->error = 1;
  CHECK(recent_find(&table, 19999)->error == 1);
}

/* Each peer's port is its cookie: a reader must never see one's cookie with another's port. */
static void *mix(void *argument) {
  uint64_t from = (uint64_t)(uintptr_t)argument;
  for (uint64_t i = 0; i < 200000; i++) {
    uint64_t cookie = 1 + (from + i * 7) % 4096;
    struct mn_peer peer = {.known = true, .address = mn_ipv4((uint32_t)cookie, (uint16_t)cookie)};
    if (i % 3 == 0) mn_peers_keep(cookie, &peer);
    if (mn_peers_find(cookie, &peer) && !mn_is_ipv4(&peer.address, (uint32_t)cookie)) return argument;
  }
  return NULL;
}

static void test_peers(void) {
  pthread_t threads[4];
  struct mn_peer peer = {.known = true};
  CHECK(!mn_peers_find(100077, &peer));
  mn_peers_keep(100077, &peer);
  CHECK(mn_peers_find(100077, &peer) && peer.known);
  for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, mix, (void *)(i * 1000 + 1));
  for (int i = 0; i < 4; i++) {
    void *bad;
    pthread_join(threads[i], &bad);
    CHECK(!bad);
  }
}

int main(void) {
  test_ranges();
  test_texts();
  test_sockaddrs();
  test_self();
  test_socks_request();
  test_socks_replies();
  test_socks_errors();
  test_whois();
  test_status();
  test_http();
  test_recent();
  test_peers();
  return failed;
}
