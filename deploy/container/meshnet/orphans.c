#include "orphans.h"

#include <errno.h>
#include <string.h>

#include "diag.h"
#include "hold.h"
#include "loop.h"

/* Ending a socket changes the list that the kernel is sending: read first, then act. */
enum { AT_ONCE = 1024 };

static struct mn_address found[AT_ONCE];
static unsigned count;

static void keep(const struct mn_address *from) {
  if (count < AT_ONCE) found[count++] = *from;
}

void orphans_end(void) {
  do {
    count = 0;
    if (!diag_connecting(htons(MN_HOLD_PORT), keep)) {
      say("meshnetd: cannot look for connections that were held before: %s", strerror(errno));
      return;
    }
    unsigned ended = 0;
    for (unsigned i = 0; i < count; i++) ended += hold_break(&found[i]);
    if (count) say("meshnetd: ended %u connections that were held before", ended);
    if (!ended) return;
  } while (count == AT_ONCE);
}
