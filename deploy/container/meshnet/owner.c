#include "owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum owner owner_has(pid_t pid, uint32_t inode) {
  char path[64], want[64], link[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  int want_len = snprintf(want, sizeof want, "socket:[%u]", inode);
  DIR *folder = opendir(path);
  if (!folder) return OWNER_UNKNOWN;
  enum owner found = OWNER_NO;
  const struct dirent *entry;
  while (found == OWNER_NO && (entry = readdir(folder))) {
    ssize_t n = readlinkat(dirfd(folder), entry->d_name, link, sizeof link);
    if (n < 0 && errno == EACCES) found = OWNER_UNKNOWN;
    if (n == want_len && memcmp(link, want, (size_t)n) == 0) found = OWNER_YES;
  }
  closedir(folder);
  return found;
}
