// Shared by all cases. A case prints the outcome of its calls. The program must print the same on the kernel and under Towpath,
// except for the differences that differences.txt lists. The comment of a case says what it compares.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// One case: it runs in a process of its own, which ends with the function.
struct test_case {
    const char *theme;
    const char *name;
    void (*run)(void);
};
void add_case(struct test_case c);

#define CASE(ident)                                                                                                    \
    static void case_##ident(void);                                                                                    \
    __attribute__((constructor)) static void add_##ident(void) {                                                       \
        add_case((struct test_case){THEME, #ident, case_##ident});                                                     \
    }                                                                                                                  \
    static void case_##ident(void)

// Prints ` key=value` of the case's line.
void say(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The outcome of a call: its value, or the name of its errno.
void say_result(const char *key, long result);
// Bytes: unprintable ones as dots, long runs of one byte as `x*1000`.
void say_bytes(const char *key, const void *bytes, long count);
// POLL* bits by name. EPOLL* have the same values.
void say_events(const char *key, unsigned events);

#define CALL(key, expression)                                                                                          \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        long result_ = (long)(expression);                                                                             \
        say_result(key, result_);                                                                                      \
        result_;                                                                                                       \
    })
// Set-up that must not fail. If it does, the case ends and prints the line of the program.
#define MUST(expression)                                                                                               \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        long result_ = (long)(expression);                                                                             \
        if (result_ < 0) must_failed(__LINE__, #expression);                                                           \
        result_;                                                                                                       \
    })
void must_failed(int line, const char *what) __attribute__((noreturn));

// Sockets. `listener`, `client` and `server` of a pair are all blocking and without options.
struct pair {
    int listener, client, server;
};
int tcp(void);
int tcp6(void);
struct sockaddr_in loopback(int port);
struct sockaddr_in6 loopback6(int port);
int bound(int port);     // bound to 127.0.0.1
int listening(void);     // on a port that the kernel chooses
int listening6(void);
int port_of(int fd);
int connect_to(int fd, int listener);
struct pair pair(void);
struct pair pair6(void);
// An end whose peer has closed with a reset, after the reset has arrived.
int reset_by_peer(void);

// States. Nothing arrives at once, so a case waits until the state that it looks at is there.
unsigned events_of(int fd);                     // all that poll reports now
unsigned wait_events(int fd, unsigned wanted);  // waits (5 s at most) until all wanted are there
bool wait_unread(int fd, int count);            // until FIONREAD says at least count
bool wait_sent(int fd);                         // until SIOCOUTQ says 0
void rest(int ms);
long now_ms(void);
int fill(int fd);                               // sends until EAGAIN and the peer's window is full; bytes sent
long drain(int fd);                             // reads until nothing more comes, the end, or an error
int nonblocking(int fd, bool on);
int get_int(int fd, int level, int name);       // -errno on failure
int set_int(int fd, int level, int name, int value);

// epoll with one descriptor, whose data word is 77.
int epoll_of(int fd, unsigned events);           // a new instance that watches it
int wait_one(const char *key, int ep, int ms);   // waits once and prints the event of the descriptor
int control(int ep, int op, int fd, unsigned events);

// Threads and signals.
pthread_t later(int ms, void (*work)(void *), void *argument);
pthread_t when_asleep(void (*work)(void *), void *argument);  // once the calling thread sleeps
void wait_asleep(pid_t pid, pid_t tid);                       // until this thread sleeps (5 s at most)
void handle(int signal, bool restart);          // counts in `signals_seen`
extern volatile sig_atomic_t signals_seen;
// To the calling thread once it sleeps; then, once it sleeps again or still, the work.
pthread_t signal_asleep(int signal);
pthread_t signal_then(int signal, void (*work)(void *), void *argument);
