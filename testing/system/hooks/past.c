/* A server with several connections, in whose text nobody finds that it waits by system calls of its own: their numbers
 * come from a table. Its clients are threads that do not wait so.
 * The arguments are the way of waiting (wait, pwait or pwait2) and the trigger (level, edge or oneshot).
 * Prints "done" if all is right, and whether the library has a thread of its own in it. With -DLIBC it waits by libc. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
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

enum { CLIENTS = 5, ROUNDS = 100, BYTES = 3000, EVENTS = 4 };
static volatile long numbers[] = {232, 281, 441};
static struct sockaddr_in address;
static const char *trigger;

#ifdef LIBC
static long wait_past_libc(int way, int epoll, struct epoll_event *events) {
    struct timespec time = {30, 0};
    if (way == 0) return epoll_wait(epoll, events, EVENTS, 30000);
    if (way == 1) return epoll_pwait(epoll, events, EVENTS, 30000, NULL);
    return epoll_pwait2(epoll, events, EVENTS, &time, NULL);
}
#else
static long wait_past_libc(int way, int epoll, struct epoll_event *events) {
    struct timespec time = {30, 0};
    register long r10 __asm__("r10") = way == 2 ? (long)&time : 30000, r8 __asm__("r8") = 0, r9 __asm__("r9") = 8;
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(numbers[way]), "D"(epoll), "S"(events), "d"((long)EVENTS), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#endif

static void *client(void *nothing) {
    char sent[BYTES], got[BYTES];
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)&address, sizeof address) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        memset(sent, round, BYTES);
        CHECK(send(s, sent, BYTES, 0) == BYTES);
        CHECK(recv(s, got, BYTES, MSG_WAITALL) == BYTES && memcmp(sent, got, BYTES) == 0);
    }
    close(s);
    return nothing;
}

static void watch(int epoll, int op, int fd) {
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    if (strcmp(trigger, "edge") == 0) event.events |= EPOLLET | EPOLLRDHUP;
    if (strcmp(trigger, "oneshot") == 0) event.events |= EPOLLONESHOT;
    CHECK(epoll_ctl(epoll, op, fd, &event) == 0);
}

/* Echoes what has come; 0 at the end of the stream. */
static ssize_t echo(int fd) {
    char data[BYTES];
    for (;;) {
        ssize_t got = recv(fd, data, BYTES, 0);
        if (got < 0) CHECK(errno == EAGAIN);
        if (got <= 0) return got;
        CHECK(send(fd, data, got, 0) == got);
        if (strcmp(trigger, "level") == 0) return got;
    }
}

static int has_helper(void) {
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL) continue;
        if (fgets(name, sizeof name, comm) != NULL && strcmp(name, "towpath\n") == 0) found = 1;
        fclose(comm);
    }
    closedir(tasks);
    return found;
}

int main(int count, char **words) {
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(EPOLL_CLOEXEC);
    pthread_t clients[CLIENTS];
    CHECK(count == 3);
    int way = strcmp(words[1], "wait") == 0 ? 0 : strcmp(words[1], "pwait") == 0 ? 1 : 2;
    trigger = words[2];
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    watch(epoll, EPOLL_CTL_ADD, listener);
    for (int i = 0; i < CLIENTS; i++) CHECK(pthread_create(&clients[i], NULL, client, NULL) == 0);
    for (int open = CLIENTS; open > 0;) {
        struct epoll_event events[EVENTS];
        long found = wait_past_libc(way, epoll, events);
        CHECK(found > 0);
        for (int i = 0; i < found; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                for (int new; (new = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                    watch(epoll, EPOLL_CTL_ADD, new);
                    if (strcmp(trigger, "level") == 0) break;
                }
            } else if (echo(fd) == 0) {
                close(fd);
                open--;
                continue;
            }
            if (strcmp(trigger, "oneshot") == 0) watch(epoll, EPOLL_CTL_MOD, fd);
        }
    }
    for (int i = 0; i < CLIENTS; i++) CHECK(pthread_join(clients[i], NULL) == 0);
    puts(has_helper() ? "done with a helper" : "done");
    return 0;
}
