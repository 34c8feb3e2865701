#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum process_has process_has_socket(pid_t pid, uint32_t inode) {
  char path[64], want[64], link[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  int want_len = snprintf(want, sizeof want, "socket:[%u]", inode);
  DIR *folder = opendir(path);
  if (!folder) return PROCESS_HIDDEN;
  enum process_has found = PROCESS_HAS_NOT;
  const struct dirent *entry;
  while (found == PROCESS_HAS_NOT && (entry = readdir(folder))) {
    ssize_t n = readlinkat(dirfd(folder), entry->d_name, link, sizeof link);
    if (n < 0 && errno == EACCES) found = PROCESS_HIDDEN;
    if (n == want_len && memcmp(link, want, (size_t)n) == 0) found = PROCESS_HAS;
  }
  closedir(folder);
  return found;
}

enum { EXITING = 0x4 }; /* PF_EXITING of the kernel's include/linux/sched.h, in the ninth field of stat: proc(5) */

bool process_runs(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return errno != ESRCH;
  text[n] = 0;
  char state;
  unsigned flags;
  const char *rest = strrchr(text, ')'); /* the name before it may have any character */
  if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2) return true;
  return state != 'Z' && state != 'X' && !(flags & EXITING);
}
