/* Sockets that an earlier meshnetd held when it was killed. */
#ifndef MESHNET_ORPHANS_H
#define MESHNET_ORPHANS_H

/* End them. Otherwise they would wait until the kernel gives up, after two minutes. */
void orphans_end(void);

#endif
