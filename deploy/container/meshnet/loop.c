#include "loop.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 256, OFTEN_MAX = 20, OFTEN_MS = 10000 };

static int epoll = -1;
static bool running;
static struct timer *timers;
static int64_t next_due_ms = INT64_MAX;
static void **garbage;

static void say_words(const char *format, va_list words) {
  char line[512];
  int len = vsnprintf(line, sizeof line - 1, format, words);
  if (len < 0) return;
  if ((size_t)len > sizeof line - 2) len = (int)sizeof line - 2;
  line[len] = '\n';
  ssize_t done = write(STDERR_FILENO, line, (size_t)len + 1);
  (void)done; /* nowhere to report it */
}

void say(const char *format, ...) {
  va_list words;
  va_start(words, format);
  say_words(format, words);
  va_end(words);
}

void say_often(const char *format, ...) {
  static int64_t since_ms;
  static unsigned said;
  int64_t now_ms = loop_now_ms();
  if (now_ms - since_ms > OFTEN_MS) {
    if (said > OFTEN_MAX) say("meshnetd: left out %u lines like the last", said - OFTEN_MAX);
    since_ms = now_ms;
    said = 0;
  }
  if (++said > OFTEN_MAX) return;
  va_list words;
  va_start(words, format);
  say_words(format, words);
  va_end(words);
}

void loop_start(void) {
  epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    say("meshnetd: epoll: %s", strerror(errno));
    exit(1);
  }
}

int64_t loop_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void fire_due(void) {
  int64_t now = loop_now_ms();
  if (now < next_due_ms) return;
  /* A timer that fires may set or cancel any other: begin again after each. */
  bool again = true;
  while (again) {
    again = false;
    next_due_ms = INT64_MAX;
    for (struct timer *timer = timers; timer; timer = timer->next) {
      if (timer->due_ms <= now) {
        loop_cancel(timer);
        timer->fire(timer);
        again = true;
        break;
      }
      if (timer->due_ms < next_due_ms) next_due_ms = timer->due_ms;
    }
  }
}

static void empty_garbage(void) {
  while (garbage) {
    void **next = *garbage;
    free(garbage);
    garbage = next;
  }
}

static int pause_ms(void) {
  if (next_due_ms == INT64_MAX) return -1;
  int64_t left = next_due_ms - loop_now_ms();
  return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

void loop_run(void) {
  struct epoll_event events[BATCH];
  running = true;
  while (running) {
    int n = epoll_wait(epoll, events, BATCH, pause_ms());
    for (int i = 0; i < n; i++) {
      struct watch *watch = events[i].data.ptr;
      if (watch->fd >= 0) watch->ready(watch, events[i].events);
    }
    fire_due();
    empty_garbage();
  }
}

void loop_stop(void) { running = false; }

bool loop_watch(struct watch *watch, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  watch->fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return true;
  say("meshnetd: cannot watch a descriptor: %s", strerror(errno));
  watch->fd = -1;
  close(fd);
  return false;
}

void loop_events(struct watch *watch, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

int loop_release(struct watch *watch) {
  int fd = watch->fd;
  if (fd >= 0) epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
  watch->fd = -1;
  return fd;
}

void loop_close(struct watch *watch) {
  int fd = loop_release(watch);
  if (fd >= 0) close(fd);
}

void loop_after(struct timer *timer, int64_t ms) {
  loop_cancel(timer);
  timer->due_ms = loop_now_ms() + ms;
  if (timer->due_ms < next_due_ms) next_due_ms = timer->due_ms;
  timer->next = timers;
  timer->link = &timers;
  if (timers) timers->link = &timer->next;
  timers = timer;
}

void loop_cancel(struct timer *timer) {
  if (!timer->link) return;
  *timer->link = timer->next;
  if (timer->next) timer->next->link = timer->link;
  timer->link = NULL;
}

void loop_free(void *memory) {
  *(void **)memory = garbage;
  garbage = memory;
}
