/* Sockets that an earlier meshnetd held when it was killed. */
#ifndef MESHNET_ORPHANS_H
#define MESHNET_ORPHANS_H

/* End them: nobody else would before their kernel gives up, after two minutes. */
void orphans_end(void);

#endif
