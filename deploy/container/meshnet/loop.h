/* meshnetd's event loop: descriptors, timers, and memory that is freed once nothing of the round can refer to it. */
#ifndef MESHNET_LOOP_H
#define MESHNET_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct watch {
  int fd; /* -1: not watched */
  void (*ready)(struct watch *watch, uint32_t events);
};

struct timer {
  struct timer *next;
  struct timer **link; /* NULL: not set */
  int64_t due_ms;
  void (*fire)(struct timer *timer);
};

#define MEMBER_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

void loop_start(void);
/* Run until loop_stop. */
void loop_run(void);
void loop_stop(void);
int64_t loop_now_ms(void);

/* Watch a descriptor that is now the watch's own. False, with the descriptor closed, when there is no room. */
bool loop_watch(struct watch *watch, int fd, uint32_t events);
void loop_events(struct watch *watch, uint32_t events);
/* Stop watching and close. */
void loop_close(struct watch *watch);
/* Stop watching; the descriptor is the caller's again. -1 when there was none. */
int loop_release(struct watch *watch);

/* Call timer->fire once, after this time. A timer that is set already gets the new time. */
void loop_after(struct timer *timer, int64_t ms);
void loop_cancel(struct timer *timer);

/* Free at the end of the round. The memory must begin with at least a pointer's room. */
void loop_free(void *memory);

/* One line to stderr. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for what programs can cause: 20 lines in 10 s, and then how many were left out. */
void say_often(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
