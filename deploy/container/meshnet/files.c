#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "real.h"

/* The first bytes of a file; 0 when it cannot be read. */
static size_t contents(const char *path, char *out, size_t room) {
  int saved = errno;
  size_t got = 0;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd >= 0) {
    long n;
    while (got < room && ((n = syscall(SYS_read, fd, out + got, room - got)) > 0 || (n < 0 && errno == EINTR))) {
      if (n > 0) got += (size_t)n;
    }
    syscall(SYS_close, fd);
  }
  errno = saved;
  return got;
}

bool mn_active(void) {
  if (mn_off()) return false;
  int saved = errno;
  bool there = syscall(SYS_faccessat, AT_FDCWD, MN_DIRECTORY, F_OK) == 0;
  errno = saved;
  return there;
}

struct mn_self mn_self(void) {
  char text[128];
  if (mn_off()) return (struct mn_self){0};
  return mn_parse_self(text, contents(MN_DIRECTORY "/" MN_SELF_NAME, text, sizeof text));
}

size_t mn_hostname(char out[65]) {
  if (mn_off()) return 0;
  size_t len = contents(MN_DIRECTORY "/" MN_HOSTNAME_NAME, out, 64);
  for (size_t i = 0; i < len; i++) {
    if (out[i] == '\n' || out[i] == 0) len = i;
  }
  out[len] = 0;
  return len;
}
