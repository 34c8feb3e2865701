#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What stands in until the constructor has run: constructors of other libraries may run before. dlsym is no choice
 * here, for it allocates and locks. */
static int sys_connect(int fd, const struct sockaddr *sa, socklen_t len) {
  return (int)syscall(SYS_connect, fd, sa, len);
}
static int sys_bind(int fd, const struct sockaddr *sa, socklen_t len) { return (int)syscall(SYS_bind, fd, sa, len); }
static int sys_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags) {
  return (int)syscall(SYS_accept4, fd, sa, len, flags);
}
static int sys_accept(int fd, struct sockaddr *sa, socklen_t *len) { return sys_accept4(fd, sa, len, 0); }
static int sys_getpeername(int fd, struct sockaddr *sa, socklen_t *len) {
  return (int)syscall(SYS_getpeername, fd, sa, len);
}
static int sys_getsockname(int fd, struct sockaddr *sa, socklen_t *len) {
  return (int)syscall(SYS_getsockname, fd, sa, len);
}
static int sys_getsockopt(int fd, int level, int name, void *value, socklen_t *len) {
  return (int)syscall(SYS_getsockopt, fd, level, name, value, len);
}
static ssize_t sys_sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *sa, socklen_t len) {
  return syscall(SYS_sendto, fd, data, n, flags, sa, len);
}
static ssize_t sys_sendmsg(int fd, const struct msghdr *message, int flags) {
  return syscall(SYS_sendmsg, fd, message, flags);
}
static int sys_sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  return (int)syscall(SYS_sendmmsg, fd, messages, n, flags);
}
static int no_getifaddrs(struct ifaddrs **list) {
  *list = NULL;
  return 0;
}
static void no_freeifaddrs(struct ifaddrs *list) { (void)list; }
static int sys_ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  return (int)syscall(SYS_ioctl, fd, request, argument);
}
static unsigned no_index(const char *name) {
  (void)name;
  errno = ENODEV;
  return 0;
}
static char *no_name(unsigned index, char *name) {
  (void)index;
  (void)name;
  errno = ENXIO;
  return NULL;
}
static struct if_nameindex *no_names(void) {
  errno = ENOBUFS;
  return NULL;
}
static int sys_uname(struct utsname *names) { return (int)syscall(SYS_uname, names); }
static int sys_gethostname(char *name, size_t len) {
  struct utsname names;
  if (sys_uname(&names) != 0) return -1;
  size_t need = strlen(names.nodename) + 1;
  memcpy(name, names.nodename, need < len ? need : len);
  if (need <= len) return 0;
  errno = ENAMETOOLONG;
  return -1;
}

static struct mn_real real = {
    .connect = sys_connect,
    .bind = sys_bind,
    .accept = sys_accept,
    .accept4 = sys_accept4,
    .getpeername = sys_getpeername,
    .getsockname = sys_getsockname,
    .getsockopt = sys_getsockopt,
    .sendto = sys_sendto,
    .sendmsg = sys_sendmsg,
    .sendmmsg = sys_sendmmsg,
    .getifaddrs = no_getifaddrs,
    .freeifaddrs = no_freeifaddrs,
    .ioctl = sys_ioctl,
    .if_nametoindex = no_index,
    .if_indextoname = no_name,
    .if_nameindex = no_names,
    .gethostname = sys_gethostname,
    .uname = sys_uname,
};
static bool off;

/* POSIX lets dlsym's result be a function; ISO C has no cast for it. */
static void resolve(void *place, const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (found) memcpy(place, &found, sizeof found);
}

__attribute__((constructor(101))) static void start(void) {
  int saved = errno;
  resolve(&real.connect, "connect");
  resolve(&real.bind, "bind");
  resolve(&real.accept, "accept");
  resolve(&real.accept4, "accept4");
  resolve(&real.getpeername, "getpeername");
  resolve(&real.getsockname, "getsockname");
  resolve(&real.getsockopt, "getsockopt");
  resolve(&real.sendto, "sendto");
  resolve(&real.sendmsg, "sendmsg");
  resolve(&real.sendmmsg, "sendmmsg");
  resolve(&real.getifaddrs, "getifaddrs");
  resolve(&real.freeifaddrs, "freeifaddrs");
  resolve(&real.ioctl, "ioctl");
  resolve(&real.if_nametoindex, "if_nametoindex");
  resolve(&real.if_indextoname, "if_indextoname");
  resolve(&real.if_nameindex, "if_nameindex");
  resolve(&real.gethostname, "gethostname");
  resolve(&real.uname, "uname");
  const char *word = secure_getenv("MESHNET");
  off = word && strcmp(word, "off") == 0;
  errno = saved;
}

const struct mn_real *mn_real(void) { return &real; }

bool mn_off(void) { return off; }
