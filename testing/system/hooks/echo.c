/* A server and its clients in one program, with threads, signals, every way of waiting, and processes. Arguments:
 *   threads   four connections, each echoed 100 times 50,000 bytes; signals arrive all the while
 *   fork      a child that serves the connection that its parent has accepted
 *   jump      handlers that jump out of calls by siglongjmp, on the thread's stack and on an alternate stack
 *   jit       the same calls from code that the program makes at run time
 * Prints "done" if all is right. It is linked statically and dynamically, with glibc and with musl. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

enum { BYTES = 50000, ROUNDS = 100, CLIENTS = 4 };

static struct sockaddr_in address;
static volatile sig_atomic_t alarms;
static __thread int own_value; /* handlers must always run with the program's thread-local storage */

static void on_alarm(int signal) {
    static __thread int depth;
    depth++;
    alarms += depth == 1 && signal == SIGALRM && own_value >= 7 && getpid() > 0;
    depth--;
}

static int listening(void) {
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_port = 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0);
    CHECK(listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    return listener;
}

static void echo(int s) {
    char data[8192];
    ssize_t count;
    while ((count = read(s, data, sizeof data)) != 0) {
        if (count < 0 && errno == EINTR) continue;
        CHECK(count > 0);
        for (ssize_t sent = 0; sent < count;) {
            ssize_t more = write(s, data + sent, count - sent);
            if (more < 0 && errno == EINTR) continue;
            CHECK(more > 0);
            sent += more;
        }
    }
    close(s);
}

static void *serve(void *listener) {
    own_value = 7;
    int s = accept((int)(long)listener, NULL, NULL);
    CHECK(s >= 0);
    echo(s);
    return NULL;
}

/* Waits for something to read, by poll, select or epoll. */
static void wait_for(int s, int round) {
    struct pollfd one = {s, POLLIN, 0};
    fd_set set;
    struct epoll_event event = {EPOLLIN, {.fd = s}};
    int found = -1;
    while (found < 0) {
        if (round % 3 == 0) {
            found = poll(&one, 1, 10000);
        } else if (round % 3 == 1) {
            struct timeval time = {10, 0};
            FD_ZERO(&set);
            FD_SET(s, &set);
            found = select(s + 1, &set, NULL, NULL, &time);
        } else {
            int epoll = epoll_create1(EPOLL_CLOEXEC);
            CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, s, &event) == 0);
            found = epoll_wait(epoll, &event, 1, 10000);
            close(epoll);
        }
        CHECK(found > 0 || (found < 0 && errno == EINTR));
    }
}

static void *client(void *number) {
    static char out[CLIENTS][BYTES], in[CLIENTS][BYTES];
    char *mine = out[(long)number], *back = in[(long)number];
    own_value = 7 + (int)(long)number;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)&address, sizeof address) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        memset(mine, 'a' + (round + (int)(long)number) % 26, BYTES);
        for (ssize_t sent = 0; sent < BYTES;) {
            ssize_t more = send(s, mine + sent, BYTES - sent, 0);
            CHECK(more > 0 || errno == EINTR);
            if (more > 0) sent += more;
        }
        for (ssize_t got = 0; got < BYTES;) {
            wait_for(s, round);
            ssize_t more = recv(s, back + got, BYTES - got, 0);
            CHECK(more > 0 || errno == EINTR);
            if (more > 0) got += more;
        }
        CHECK(memcmp(mine, back, BYTES) == 0);
    }
    CHECK(own_value == 7 + (int)(long)number);
    shutdown(s, SHUT_WR);
    CHECK(read(s, back, 1) == 0);
    close(s);
    return NULL;
}

static void threads(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    pthread_t servers[CLIENTS], clients[CLIENTS];
    int listener = listening();
    own_value = 7;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(sigaction(SIGALRM, NULL, &action) == 0 && action.sa_handler == on_alarm);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (long i = 0; i < CLIENTS; i++) CHECK(pthread_create(&servers[i], NULL, serve, (void *)(long)listener) == 0);
    for (long i = 0; i < CLIENTS; i++) CHECK(pthread_create(&clients[i], NULL, client, (void *)i) == 0);
    for (int i = 0; i < CLIENTS; i++) CHECK(pthread_join(clients[i], NULL) == 0 && pthread_join(servers[i], NULL) == 0);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(alarms > 0);
    /* More threads than there could be if the library never freed one. */
    for (int i = 0; i < 500; i++) {
        pthread_t one;
        CHECK(pthread_create(&one, NULL, (void *(*)(void *))getenv, "HOME") == 0);
        CHECK(pthread_join(one, NULL) == 0);
    }
}

static void forks(void) {
    int listener = listening(), status, s;
    char data[5];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        s = accept(listener, NULL, NULL);
        CHECK(s >= 0);
        echo(s);
        _exit(42);
    }
    s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)&address, sizeof address) == 0);
    for (int i = 0; i < 20; i++) {
        CHECK(write(s, "hello", 5) == 5);
        CHECK(recv(s, data, 5, MSG_WAITALL) == 5 && memcmp(data, "hello", 5) == 0);
    }
    close(s);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static sigjmp_buf back;

static void on_jump(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void jumps(void) {
    static char own[65536];
    stack_t stack = {.ss_sp = own, .ss_size = sizeof own};
    struct itimerval soon = {{0, 0}, {0, 300}};
    int listener = listening();
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (volatile int i = 0; i < 1000; i++) {
        struct sigaction action = {.sa_handler = on_jump, .sa_flags = i % 2 ? SA_ONSTACK : 0};
        sigaction(SIGALRM, &action, NULL);
        if (sigsetjmp(back, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            CHECK(accept(listener, NULL, NULL) >= 0);
            CHECK(!"nobody has connected");
        }
    }
    close(listener);
    forks();
}

typedef long (*made)(long, long, long, long);

/* A function (number, three arguments) that is made at run time, so that no tool can find it before. */
static made make(void) {
    static const unsigned char code[] = {0x48, 0x89, 0xf8,  /* mov %rdi,%rax */
                                         0x48, 0x89, 0xf7,  /* mov %rsi,%rdi */
                                         0x48, 0x89, 0xd6,  /* mov %rdx,%rsi */
                                         0x48, 0x89, 0xca,  /* mov %rcx,%rdx */
                                         0x0f, 0x05, 0xc3}; /* syscall; ret */
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, sizeof code);
    CHECK(mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0);
    return (made)memory;
}

static void jit(void) {
    pthread_t server;
    char data[5];
    made call = make();
    int listener = listening();
    CHECK(pthread_create(&server, NULL, serve, (void *)(long)listener) == 0);
    long s = call(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CHECK(s >= 0 && call(SYS_connect, s, (long)&address, sizeof address) == 0);
    for (int i = 0; i < 100; i++) {
        CHECK(call(SYS_write, s, (long)"hello", 5) == 5);
        CHECK(call(SYS_read, s, (long)data, 5) == 5 && memcmp(data, "hello", 5) == 0);
    }
    CHECK(call(SYS_read, -1, 0, 0) == -EBADF);
    CHECK(call(SYS_close, s, 0, 0) == 0);
    CHECK(pthread_join(server, NULL) == 0);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (strcmp(what, "threads") == 0) threads();
    else if (strcmp(what, "fork") == 0) forks();
    else if (strcmp(what, "jump") == 0) jumps();
    else if (strcmp(what, "jit") == 0) jit();
    else return 2;
    puts("done");
    return 0;
}
