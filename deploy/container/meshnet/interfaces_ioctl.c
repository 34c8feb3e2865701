/* The same interface in the older ways to ask: ioctl, as Open MPI and PMIx do, and if_nametoindex and its like. */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "files.h"
#include "interfaces.h"
#include "real.h"

/* ARPHRD_NONE of linux/if_arp.h, which a TUN device has. */
#define NO_LINK_LAYER 0xfffe

/* The machine's own IPv4 address, where it has no real interface of that name. */
static bool stands_in(int fd, struct mn_address *own) {
  struct ifreq real = {.ifr_name = MN_INTERFACE};
  int saved = errno;
  bool ours = mn_active() && mn_real()->ioctl(fd, SIOCGIFFLAGS, &real) != 0 && errno == ENODEV;
  errno = saved;
  if (!ours) return false;
  *own = mn_self().v4;
  return own->family == 4;
}

static void put(struct sockaddr *out, const struct mn_address *address) {
  struct sockaddr_storage sa;
  mn_to_sockaddr(address, AF_INET, &sa);
  memcpy(out, &sa, sizeof *out);
}

/* What SIOCGIFCONF gives, and one entry more if there is room. Without a buffer it asks for the room. */
static int list(int fd, struct ifconf *conf) {
  struct mn_address own;
  int room = conf->ifc_len;
  int rc = mn_real()->ioctl(fd, SIOCGIFCONF, conf);
  if (rc != 0 || !stands_in(fd, &own)) return rc;
  if (conf->ifc_buf) {
    if (room - conf->ifc_len < (int)sizeof(struct ifreq)) return 0;
    struct ifreq one = {.ifr_name = MN_INTERFACE};
    put(&one.ifr_addr, &own);
    memcpy(conf->ifc_buf + conf->ifc_len, &one, sizeof one);
  }
  conf->ifc_len += (int)sizeof(struct ifreq);
  return 0;
}

static bool is_named(const struct ifreq *one) { return strncmp(one->ifr_name, MN_INTERFACE, IFNAMSIZ) == 0; }

static bool describe(unsigned long request, const struct mn_address *own, struct ifreq *one) {
  struct mn_address all = mn_ipv4(0xffffffff, 0);
  switch (request) {
    case SIOCGIFADDR:
      put(&one->ifr_addr, own);
      return true;
    case SIOCGIFNETMASK:
      put(&one->ifr_netmask, &all);
      return true;
    case SIOCGIFFLAGS:
      one->ifr_flags = MN_INTERFACE_FLAGS;
      return true;
    case SIOCGIFINDEX:
      one->ifr_ifindex = MN_INTERFACE_INDEX;
      return true;
    case SIOCGIFMTU:
      one->ifr_mtu = MN_INTERFACE_MTU;
      return true;
    case SIOCGIFHWADDR:
      one->ifr_hwaddr = (struct sockaddr){.sa_family = NO_LINK_LAYER};
      return true;
    default:
      return false;
  }
}

static bool is_about_interfaces(unsigned long request) {
  return request == SIOCGIFADDR || request == SIOCGIFNETMASK || request == SIOCGIFFLAGS || request == SIOCGIFINDEX ||
         request == SIOCGIFMTU || request == SIOCGIFHWADDR;
}

MN_EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  struct mn_address own;
  if (request == SIOCGIFCONF && argument) return list(fd, argument);
  if (is_about_interfaces(request) && argument && is_named(argument) && stands_in(fd, &own)) {
    return describe(request, &own, argument) ? 0 : -1;
  }
  return mn_real()->ioctl(fd, request, argument);
}

static bool has_addresses(void) {
  struct mn_self self = mn_active() ? mn_self() : (struct mn_self){0};
  return self.v4.family || self.v6.family;
}

MN_EXPORT unsigned if_nametoindex(const char *name) {
  unsigned index = mn_real()->if_nametoindex(name);
  int why = errno;
  if (!index && strcmp(name, MN_INTERFACE) == 0 && has_addresses()) return MN_INTERFACE_INDEX;
  errno = why;
  return index;
}

MN_EXPORT char *if_indextoname(unsigned index, char name[IF_NAMESIZE]) {
  if (index != MN_INTERFACE_INDEX || !has_addresses()) return mn_real()->if_indextoname(index, name);
  memcpy(name, MN_INTERFACE, sizeof MN_INTERFACE);
  return name;
}

/* The C library's list is one array of allocated names that ends with an empty entry, and if_freenameindex frees it
 * so. */
MN_EXPORT struct if_nameindex *if_nameindex(void) {
  struct if_nameindex *all = mn_real()->if_nameindex();
  if (!all || !has_addresses()) return all;
  size_t n = 0;
  for (; all[n].if_name; n++) {
    if (strcmp(all[n].if_name, MN_INTERFACE) == 0) return all;
  }
  char *name = strdup(MN_INTERFACE);
  struct if_nameindex *longer = name ? realloc(all, (n + 2) * sizeof *all) : NULL;
  if (!longer) {
    free(name);
    return all;
  }
  longer[n + 1] = longer[n];
  longer[n].if_index = MN_INTERFACE_INDEX;
  longer[n].if_name = name;
  return longer;
}
