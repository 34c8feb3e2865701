/* getifaddrs: an interface tailscale0 with the machine's own addresses. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "interfaces.h"
#include "real.h"

/* One address of the interface. Its name lies right behind the entry, where no entry of the C library has it: that is
 * how freeifaddrs knows whose it is. */
struct entry {
  struct ifaddrs head;
  char name[sizeof MN_INTERFACE];
  struct sockaddr_storage address;
  struct sockaddr_storage mask;
};

static bool is_ours(const struct ifaddrs *head) {
  return head->ifa_name == (const char *)head + offsetof(struct entry, name);
}

static struct entry *make(const struct mn_address *address) {
  struct entry *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  int family = address->family == 4 ? AF_INET : AF_INET6;
  struct mn_address all = *address;
  memset(all.ip, 0xff, sizeof all.ip);
  memcpy(made->name, MN_INTERFACE, sizeof MN_INTERFACE);
  mn_to_sockaddr(address, family, &made->address);
  mn_to_sockaddr(&all, family, &made->mask);
  made->head.ifa_name = made->name;
  made->head.ifa_flags = MN_INTERFACE_FLAGS;
  made->head.ifa_addr = (struct sockaddr *)&made->address;
  made->head.ifa_netmask = (struct sockaddr *)&made->mask;
  return made;
}

static bool append(struct ifaddrs **list, const struct mn_address *address) {
  struct entry *made = make(address);
  if (!made) return false;
  while (*list) list = &(*list)->ifa_next;
  *list = &made->head;
  return true;
}

static bool has_it(const struct ifaddrs *list) {
  for (; list; list = list->ifa_next) {
    if (list->ifa_name && strcmp(list->ifa_name, MN_INTERFACE) == 0) return true;
  }
  return false;
}

MN_EXPORT int getifaddrs(struct ifaddrs **list) {
  int rc = mn_real()->getifaddrs(list);
  if (rc != 0 || !mn_active() || has_it(*list)) return rc;
  struct mn_self self = mn_self();
  if ((self.v4.family && !append(list, &self.v4)) || (self.v6.family && !append(list, &self.v6))) {
    freeifaddrs(*list);
    return -1;
  }
  return 0;
}

MN_EXPORT void freeifaddrs(struct ifaddrs *list) {
  struct ifaddrs **link = &list;
  while (*link) {
    struct ifaddrs *here = *link;
    if (is_ours(here)) {
      *link = here->ifa_next;
      free(here);
    } else {
      link = &here->ifa_next;
    }
  }
  if (list) mn_real()->freeifaddrs(list);
}
