/* gethostname and uname: the name that the node agent has given the machine. */
#include <errno.h>
#include <string.h>

#include "files.h"
#include "real.h"

MN_EXPORT int gethostname(char *name, size_t len) {
  char own[65];
  size_t own_len = mn_hostname(own);
  if (!own_len || !name) return mn_real()->gethostname(name, len);
  memcpy(name, own, own_len + 1 < len ? own_len + 1 : len);
  if (own_len < len) return 0;
  errno = ENAMETOOLONG;
  return -1;
}

/* What gethostname becomes in programs that are compiled with _FORTIFY_SOURCE. */
MN_EXPORT int __gethostname_chk(char *name, size_t len, size_t room) {
  if (len > room) __builtin_trap();
  return gethostname(name, len);
}

MN_EXPORT int uname(struct utsname *names) {
  char own[65];
  int rc = mn_real()->uname(names);
  size_t own_len = rc == 0 ? mn_hostname(own) : 0;
  if (own_len && own_len < sizeof names->nodename) {
    memset(names->nodename, 0, sizeof names->nodename);
    memcpy(names->nodename, own, own_len);
  }
  return rc;
}
