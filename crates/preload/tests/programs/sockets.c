// What differs from one processor to another in a program under the preloaded library: copies that fault, variadic functions, system
// calls by number, forks that libc does not make, and threads that use one socket. It prints `done`.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

// Both ends of a connection.
static int ends[2];

static void join_ends(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(bind(listener, (struct sockaddr *)&at, sizeof at) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    MUST(listen(listener, 4) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    ends[1] = accept(listener, NULL, NULL);
    MUST(ends[1] >= 0);
    MUST(close(listener) == 0);
}

static void comes(const char *expected) {
    char got[512];
    size_t length = strlen(expected), count = 0;
    while (count < length) {
        ssize_t piece = recv(ends[1], got + count, length - count, 0);
        MUST(piece > 0);
        count += piece;
    }
    got[count] = 0;
    if (strcmp(got, expected) != 0) {
        fprintf(stderr, "came: %s\n", got);
        exit(1);
    }
}

static void every_length(void) {
    static unsigned char sent[70000], got[70000];
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = i * 31 >> 3;
    for (size_t length = 1; length <= sizeof sent; length += length < 300 ? 1 : 9973) {
        size_t out = 0, in = 0;
        while (in < length) {
            if (out < length) {
                ssize_t piece = send(ends[0], sent + out, length - out, MSG_DONTWAIT);
                MUST(piece > 0 || errno == EAGAIN);
                if (piece > 0) out += piece;
            }
            ssize_t piece = recv(ends[1], got + in, length - in, 0);
            MUST(piece > 0);
            in += piece;
        }
        MUST(memcmp(sent, got, length) == 0);
    }
}

static void faults(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED && mprotect(memory + page, page, PROT_NONE) == 0);
    memset(memory, 'x', page);
    for (int length = 1; length < 200; length++) {
        errno = 0;
        MUST(send(ends[0], memory + page - length + 1, length, 0) == -1 && errno == EFAULT);
        MUST(send(ends[0], memory + page - length, length, 0) == length);
        errno = 0;
        MUST(recv(ends[1], memory + page, length, 0) == -1 && errno == EFAULT);
        MUST(recv(ends[1], memory + page - length, length, MSG_WAITALL) == length);
    }
    munmap(memory, 2 * page);
}

// A fault of the program's own comes to its own handler.
static volatile sig_atomic_t faulted;
static char *broken;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    faulted = info->si_addr == broken;
    mprotect(broken, sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE);
}

static void own_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    broken = mmap(NULL, sysconf(_SC_PAGESIZE), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(volatile char *)broken = 1;
    MUST(faulted && *broken == 1);
}

static void print_list(const char *format, ...) {
    va_list list;
    va_start(list, format);
    MUST(vdprintf(ends[0], format, list) > 0);
    va_end(list);
}

static void variadic(void) {
    MUST(dprintf(ends[0], "%d %s %ld %.2f %c %d %d %d %d %.1f %s %d;", 1, "two", 3L, 4.25, '5', 6, 7, 8, 9, 10.5, "eleven", 12) > 0);
    comes("1 two 3 4.25 5 6 7 8 9 10.5 eleven 12;");
    MUST(dprintf(ends[0], "%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %d;", 1., 2., 3., 4., 5., 6., 7., 8., 9., 10) > 0);
    comes("1 2 3 4 5 6 7 8 9 10;");
    print_list("%s and %d;", "a list", 7);
    comes("a list and 7;");
}

// The child is a program of this machine, which need not be one of this processor.
static void executed(void) {
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "test \"$*\" = '1 2 3 4 5 6 7 8 9' && exit 7", "sh", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
        _exit(1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    errno = 0;
    MUST(execl("/no/such/program", "it", "1", "2", "3", "4", "5", "6", "7", "8", NULL) == -1 && errno == ENOENT);
}

static void by_number(void) {
    MUST(syscall(SYS_write, ends[0], "by number", 9) == 9);
    comes("by number");
    errno = 0;
    MUST(syscall(SYS_write, -1, "", 1) == -1 && errno == EBADF);
    MUST(syscall(SYS_gettid) > 0);
    int copy = syscall(SYS_dup, ends[0]);
    MUST(copy >= 0 && send(copy, "copy", 4, 0) == 4);
    comes("copy");
    MUST(syscall(SYS_close, copy) == 0 && send(copy, "x", 1, 0) == -1 && errno == EBADF);
    // Six arguments.
    void *memory = (void *)syscall(SYS_mmap, NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED && syscall(SYS_munmap, memory, 65536) == 0);
}

// Calls that wait with a set of blocked signals: bad sets, and the time that is left.
static void masked(void) {
    struct pollfd one = {.fd = ends[1], .events = POLLIN};
    struct timespec none = {0}, left = {.tv_sec = 50};
    errno = 0;
    MUST(syscall(SYS_ppoll, &one, 1, &none, (void *)8, 8) == -1 && errno == EFAULT);
    errno = 0;
    MUST(syscall(SYS_ppoll, &one, 1, &none, &left, 4) == -1 && errno == EINVAL);
    errno = 0;
    MUST(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &none, (void *)8) == -1 && errno == EFAULT);
    MUST(syscall(SYS_ppoll, &one, 1, &none, NULL, 8) == 0);
    MUST(send(ends[0], "now", 3, 0) == 3);
    MUST(syscall(SYS_ppoll, &one, 1, &left, NULL, 8) == 1 && left.tv_sec < 50);
    comes("now");
}

static void bare_fork(void) {
    pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        if (send(ends[0], "from the child", 14, 0) != 14) _exit(1);
        _exit(5);
    }
    MUST(child > 0);
    comes("from the child");
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static void waits(void) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788}, got[3];
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
    MUST(epoll_wait(set, got, 3, 0) == 0);
    MUST(send(ends[0], "e", 1, 0) == 1);
    MUST(epoll_wait(set, got, 3, 10000) == 1 && got[0].events == EPOLLIN && got[0].data.u64 == event.data.u64);
    MUST(syscall(SYS_epoll_pwait, set, got, 3, 10000, NULL, 8) == 1);
    struct pollfd one = {.fd = ends[1], .events = POLLIN};
    MUST(poll(&one, 1, 0) == 1 && one.revents == POLLIN);
    comes("e");
    MUST(poll(&one, 1, 0) == 0);
    close(set);
}

enum { TURNS = 2000 };

static void *answers(void *unused) {
    (void)unused;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        unsigned got;
        MUST(recv(ends[1], &got, sizeof got, MSG_WAITALL) == sizeof got && got == turn);
        MUST(send(ends[1], &got, sizeof got, 0) == sizeof got);
    }
    return NULL;
}

static void threads(void) {
    pthread_t other;
    MUST(pthread_create(&other, NULL, answers, NULL) == 0);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        unsigned got;
        MUST(send(ends[0], &turn, sizeof turn, 0) == sizeof turn);
        MUST(recv(ends[0], &got, sizeof got, MSG_WAITALL) == sizeof got && got == turn);
    }
    MUST(pthread_join(other, NULL) == 0);
}

int main(void) {
    join_ends();
    every_length();
    faults();
    own_faults();
    variadic();
    by_number();
    masked();
    bare_fork();
    waits();
    threads();
    MUST(close(ends[0]) == 0);
    char end;
    MUST(recv(ends[1], &end, 1, 0) == 0);
    executed();
    puts("done");
    return 0;
}
