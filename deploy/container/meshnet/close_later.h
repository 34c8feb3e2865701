/* Descriptors that another program could have touched. */
#ifndef MESHNET_CLOSE_LATER_H
#define MESHNET_CLOSE_LATER_H

#include <stdbool.h>

void close_later_start(void);

/* Close a descriptor that came from outside, within LATER_MS and without waiting for it. */
void close_later(int fd);

/* Close a program's socket: at once where that cannot wait. */
void close_socket(int fd);

#endif
