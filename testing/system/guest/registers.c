// Traces a process as user-mode Linux does: reads a part of its extended registers and writes that back, on a small stack.
#include <elf.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

// Registers of x87 and SSE, and the header. A processor with AVX has more.
static char part[576];

static void *trace(void *none) {
    pid_t traced = fork();
    if (traced == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(traced, NULL, 0);
    struct iovec span = {part, sizeof part};
    long got = ptrace(PTRACE_GETREGSET, traced, (void *)NT_X86_XSTATE, &span);
    long set = ptrace(PTRACE_SETREGSET, traced, (void *)NT_X86_XSTATE, &span);
    printf("%ld %zu %ld\n", got, span.iov_len, set);
    kill(traced, SIGKILL);
    waitpid(traced, NULL, 0);
    return none;
}

int main(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    // UML's kernel has 16 KiB. A thread has its own variables there, too.
    if (pthread_attr_setstacksize(&attributes, 32 << 10) || pthread_create(&thread, &attributes, trace, NULL)) return 1;
    return pthread_join(thread, NULL);
}
