/* A server and its client in one program, which takes its sockets from libc and waits for them by system calls of its
 * own. With -DLIBRARY this is the library that makes the calls, with -DPROGRAM the program without them. With -DLIBC
 * it waits by libc's functions.
 * The argument is the way of waiting: wait, pwait or pwait2. Prints "done" if all is right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

long wait_past_libc(const char *way, int epoll, struct epoll_event *events, int count);

#ifdef LIBC
long wait_past_libc(const char *way, int epoll, struct epoll_event *events, int count) {
    struct timespec time = {10, 0};
    if (strcmp(way, "wait") == 0) return epoll_wait(epoll, events, count, 10000);
    if (strcmp(way, "pwait") == 0) return epoll_pwait(epoll, events, count, 10000, NULL);
    return epoll_pwait2(epoll, events, count, &time, NULL);
}
#elif !defined PROGRAM
static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

long wait_past_libc(const char *way, int epoll, struct epoll_event *events, int count) {
    struct timespec time = {10, 0};
    if (strcmp(way, "wait") == 0) return call(232, epoll, (long)events, count, 10000, 0, 0);
    if (strcmp(way, "pwait") == 0) return call(281, epoll, (long)events, count, 10000, 0, 8);
    return call(441, epoll, (long)events, count, (long)&time, 0, 8);
}
#endif

#ifndef LIBRARY
enum { ROUNDS = 100, BYTES = 1000 };
static struct sockaddr_in address;

static void *client(void *nothing) {
    char data[BYTES];
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)&address, sizeof address) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        memset(data, round, BYTES);
        CHECK(send(s, data, BYTES, 0) == BYTES);
        CHECK(recv(s, data, BYTES, MSG_WAITALL) == BYTES && data[BYTES - 1] == (char)round);
    }
    close(s);
    return nothing;
}

int main(int count, char **words) {
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = listener}};
    char data[BYTES];
    pthread_t one;
    CHECK(count == 2);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0);
    CHECK(pthread_create(&one, NULL, client, NULL) == 0);
    for (ssize_t got = 1; got > 0;) {
        long found = wait_past_libc(words[1], epoll, &event, 1);
        CHECK(found == 1);
        if (event.data.fd == listener) {
            event.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            CHECK(event.data.fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
            continue;
        }
        got = recv(event.data.fd, data, BYTES, 0);
        CHECK(got >= 0 || errno == EAGAIN);
        if (got > 0) CHECK(send(event.data.fd, data, got, 0) == got);
        else if (got < 0) got = 1;
    }
    CHECK(pthread_join(one, NULL) == 0);
    puts("done");
    return 0;
}
#endif
