/* The C library's own functions behind those that libmeshnet replaces. */
#ifndef MESHNET_REAL_H
#define MESHNET_REAL_H

#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#define MN_EXPORT __attribute__((visibility("default")))

struct mn_real {
  int (*connect)(int, const struct sockaddr *, socklen_t);
  int (*bind)(int, const struct sockaddr *, socklen_t);
  int (*accept)(int, struct sockaddr *, socklen_t *);
  int (*accept4)(int, struct sockaddr *, socklen_t *, int);
  int (*getpeername)(int, struct sockaddr *, socklen_t *);
  int (*getsockname)(int, struct sockaddr *, socklen_t *);
  int (*getsockopt)(int, int, int, void *, socklen_t *);
  ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
  ssize_t (*sendmsg)(int, const struct msghdr *, int);
  int (*sendmmsg)(int, struct mmsghdr *, unsigned, int);
  int (*getifaddrs)(struct ifaddrs **);
  void (*freeifaddrs)(struct ifaddrs *);
  int (*ioctl)(int, unsigned long, ...);
  unsigned (*if_nametoindex)(const char *);
  char *(*if_indextoname)(unsigned, char *);
  struct if_nameindex *(*if_nameindex)(void);
  int (*gethostname)(char *, size_t);
  int (*uname)(struct utsname *);
};

/* The functions. Before the library's constructor has run, system calls are made directly, and there are no
 * interfaces. */
const struct mn_real *mn_real(void);

/* Whether MESHNET=off is in the environment. A setuid program does not listen to it. */
bool mn_off(void);

#endif
