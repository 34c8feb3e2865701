#include "answer.h"

#include <string.h>

enum { DEPTH_MAX = 64 };

/* A place in a JSON text. `bad` is final. */
struct json {
  const char *at;
  const char *end;
  bool bad;
};

static void skip_space(struct json *j) {
  while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r')) j->at++;
}

/* Take one character if it comes next. */
static bool take(struct json *j, char c) {
  skip_space(j);
  if (j->bad || j->at >= j->end || *j->at != c) return false;
  j->at++;
  return true;
}

/* Take a string; its raw text between the quotes, escapes as they stand: no name or address has any. */
static bool take_string(struct json *j, const char **text, size_t *len) {
  if (!take(j, '"')) {
    j->bad = true;
    return false;
  }
  *text = j->at;
  while (j->at < j->end && *j->at != '"') {
    if (*j->at == '\\') j->at++;
    if (j->at < j->end) j->at++;
  }
  if (j->at >= j->end) {
    j->bad = true;
    return false;
  }
  *len = (size_t)(j->at - *text);
  j->at++;
  return true;
}

static bool next_is(struct json *j, char c) {
  skip_space(j);
  return !j->bad && j->at < j->end && *j->at == c;
}

static void skip_word(struct json *j) {
  const char *start = j->at;
  while (j->at < j->end && !strchr(",]} \t\r\n", *j->at)) j->at++;
  if (j->at == start) j->bad = true;
}

/* Skip one value of any kind: brackets are counted, strings are stepped over. */
static void skip_value(struct json *j) {
  int depth = 0;
  const char *text;
  size_t len;
  do {
    skip_space(j);
    if (j->bad || j->at >= j->end) {
      j->bad = true;
      return;
    }
    char c = *j->at;
    if (c == '"') {
      take_string(j, &text, &len);
    } else if (c == '{' || c == '[') {
      depth++;
      j->at++;
    } else if (c == '}' || c == ']') {
      depth--;
      j->at++;
    } else if (c == ',' || c == ':') {
      j->at++;
    } else {
      skip_word(j);
    }
    if (depth > DEPTH_MAX || depth < 0) j->bad = true;
  } while (depth > 0 && !j->bad);
}

/* Step into an object up to the value of a key. */
static bool enter(struct json *j, const char *key) {
  if (!take(j, '{')) return false;
  size_t key_len = strlen(key);
  while (next_is(j, '"')) {
    const char *text;
    size_t len;
    if (!take_string(j, &text, &len) || !take(j, ':')) return false;
    if (len == key_len && memcmp(text, key, len) == 0) return true;
    skip_value(j);
    if (!take(j, ',')) return false;
  }
  return false;
}

/* The tailnet's addresses in an array of strings, the first of each family; a prefix length after one is left out. */
static bool addresses(struct json *j, struct mn_self *out) {
  memset(out, 0, sizeof *out);
  if (!take(j, '[')) return false;
  while (next_is(j, '"')) {
    const char *text;
    size_t len;
    if (!take_string(j, &text, &len)) return false;
    const char *slash = memchr(text, '/', len);
    struct mn_address address;
    if (mn_parse_ip(text, slash ? (size_t)(slash - text) : len, &address) && mn_is_tailnet(&address)) {
      struct mn_address *place = address.family == 4 ? &out->v4 : &out->v6;
      if (!place->family) *place = address;
    }
    if (!take(j, ',')) break;
  }
  return !j->bad && (out->v4.family || out->v6.family);
}

bool mn_whois_addresses(const char *json, size_t len, struct mn_self *out) {
  struct json j = {json, json + len, false};
  return enter(&j, "Node") && enter(&j, "Addresses") && addresses(&j, out);
}

bool mn_status_addresses(const char *json, size_t len, struct mn_self *out) {
  struct json j = {json, json + len, false};
  return enter(&j, "Self") && enter(&j, "TailscaleIPs") && addresses(&j, out);
}

int mn_http_status(const char *data, size_t len, const char **body, size_t *body_len) {
  /* "HTTP/1.x NNN" */
  if (len < 12 || memcmp(data, "HTTP/1.", 7) != 0 || data[8] != ' ') return 0;
  int status = 0;
  for (int i = 9; i < 12; i++) {
    if (data[i] < '0' || data[i] > '9') return 0;
    status = status * 10 + (data[i] - '0');
  }
  for (size_t i = 12; i + 4 <= len; i++) {
    if (memcmp(data + i, "\r\n\r\n", 4) == 0) {
      *body = data + i + 4;
      *body_len = len - i - 4;
      return status;
    }
  }
  return 0;
}
