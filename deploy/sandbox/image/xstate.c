/* Lets a user-mode Linux before 6.13 run on a processor with AMX. It is preloaded into linux.uml.
 *
 * Such a kernel keeps 2,696 bytes of a process's floating-point state. The host's kernel takes the state back only whole
 * (xstateregs_set in arch/x86/kernel/fpu/regset.c: EFAULT for any other size), and with AMX it is 11,008 bytes. The rest
 * is the state of tiles, which no process in the machine uses: it stays as the host has it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define WHOLE_MAX 65536

typedef long call(enum __ptrace_request, ...);

long ptrace(enum __ptrace_request request, ...)
{
    static call *next;
    static char whole[WHOLE_MAX] __attribute__((aligned(64)));
    va_list rest;

    va_start(rest, request);
    long pid = va_arg(rest, long);
    void *kind = va_arg(rest, void *);
    struct iovec *given = va_arg(rest, void *);
    va_end(rest);
    if (!next)
        next = (call *)dlsym(RTLD_NEXT, "ptrace");
    long done = next(request, pid, kind, given);
    if (done != -1 || errno != EFAULT || request != PTRACE_SETREGSET || (long)kind != NT_X86_XSTATE)
        return done;
    struct iovec state = {whole, sizeof(whole)};
    if (next(PTRACE_GETREGSET, pid, kind, &state) == -1)
        return -1;
    if (given->iov_len >= state.iov_len) {
        errno = EFAULT;
        return -1;
    }
    memcpy(whole, given->iov_base, given->iov_len);
    return next(PTRACE_SETREGSET, pid, kind, &state);
}
