/* The interface that programs see in place of a TUN device. */
#ifndef MESHNET_INTERFACES_H
#define MESHNET_INTERFACES_H

#include <net/if.h>

#define MN_INTERFACE "tailscale0"
/* An index that no interface of a kernel reaches. */
#define MN_INTERFACE_INDEX 0x6d657368
#define MN_INTERFACE_FLAGS (IFF_UP | IFF_RUNNING | IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST)
#define MN_INTERFACE_MTU 1280

#endif
