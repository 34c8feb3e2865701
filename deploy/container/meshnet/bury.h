/* Descriptors that another program could have touched. */
#ifndef MESHNET_BURY_H
#define MESHNET_BURY_H

#include <stdbool.h>

void bury_start(void);

/* Close a descriptor that came from outside, within BURY_MS and without waiting for it. */
void bury(int fd);

/* Close a program's socket: at once where that cannot wait. */
void bury_socket(int fd);

#endif
