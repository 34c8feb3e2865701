/* Carry bytes between two connected TCP sockets without copying them, with backpressure. */
#ifndef MESHNET_RELAY_H
#define MESHNET_RELAY_H

#include <sys/types.h>

#include "loop.h"

struct flow {
  int pipe[2];    /* -1: none is needed now */
  size_t in_pipe; /* bytes */
  bool ended;     /* the source has shut down */
  bool passed_on; /* the end is passed on to the sink */
};

struct relay {
  struct watch inner; /* the program's side */
  struct watch outer; /* the tailnet's side */
  struct flow out;    /* inner to outer */
  struct flow in;     /* outer to inner */
  struct timer timer;
  bool half_close; /* the outer side can carry one: it is no SOCKS connection */
  pid_t proxy;     /* the process behind the outer side; 0: not known */
  bool reset;      /* the program must not take the end for a good one */
  int64_t look_ms; /* how long until the next look whether the program has closed its socket */
  int64_t last_ms; /* when anything last came in from outside */
  void (*done)(struct relay *relay);
};

/* Begin with two non-blocking sockets, which are the relay's from now on. `done` is called once, when both are closed;
 * false, with both closed, when there is no room. */
bool relay_start(struct relay *relay, int inner, int outer);
void relay_abort(struct relay *relay);

#endif
