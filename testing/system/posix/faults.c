// Memory that is not there: EFAULT where the kernel gives it, and no byte lost that the kernel keeps.
#include "conformance.h"
#define THEME "faults"

static char buf[100];
// Volatile, so that the compiler does not warn about it.
static void *volatile nowhere = (void *)16;

// The last `n` bytes of a page that is followed by one without access.
static char *edge(int n) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
    return pages + 4096 - n;
}
static void *read_only(void) { return mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

// Reads into memory that is not there give EFAULT, and the data stay.
CASE(reads) {
    struct pair p = pair();
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    CALL("read", read(p.client, nowhere, 3));
    CALL("recv", recv(p.client, nowhere, 3, 0));
    CALL("peek", recv(p.client, nowhere, 3, MSG_PEEK));
    CALL("readonly", recv(p.client, read_only(), 3, 0));
    CALL("null", read(p.client, NULL, 3));
    CALL("readv", readv(p.client, nowhere, 1));
    CALL("vector", readv(p.client, &(struct iovec){nowhere, 3}, 1));
    CALL("recvmsg", recvmsg(p.client, nowhere, 0));
    CALL("kept", recv(p.client, buf, 10, 0));
}

// Reads into memory that ends half way.
CASE(reads_partly) {
    struct pair p = pair();
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    char *end = edge(2);
    CALL("edge", recv(p.client, end, 6, 0));
    CALL("rest", recv(p.client, buf, 10, MSG_DONTWAIT));
    MUST(write(p.server, "abcdef", 6));
    wait_unread(p.client, 6);
    struct iovec v[] = {{buf, 2}, {nowhere, 2}};
    CALL("vector", readv(p.client, v, 2));
    CALL("rest2", recv(p.client, buf, 10, MSG_DONTWAIT));
}

// Writes from memory that is not there give EFAULT, and nothing is sent.
CASE(writes) {
    struct pair p = pair();
    CALL("write", write(p.client, nowhere, 3));
    CALL("send", send(p.client, nowhere, 3, 0));
    CALL("null", write(p.client, NULL, 3));
    CALL("writev", writev(p.client, nowhere, 1));
    CALL("vector", writev(p.client, &(struct iovec){nowhere, 3}, 1));
    CALL("sendmsg", sendmsg(p.client, nowhere, 0));
    CALL("sendmmsg", sendmmsg(p.client, nowhere, 1, 0));
    CALL("recvmmsg", recvmmsg(p.client, nowhere, 1, MSG_DONTWAIT, NULL));
    CALL("nothing_sent", recv(p.server, buf, 1, MSG_DONTWAIT));
}

// Writes from memory that ends half way.
CASE(writes_partly) {
    struct pair p = pair();
    char *end = edge(2);
    memcpy(end, "ab", 2);
    CALL("edge", send(p.client, end, 6, 0));
    struct iovec v[] = {{"cd", 2}, {nowhere, 2}};
    CALL("vector", writev(p.client, v, 2));
    rest(50);
    CALL("peer", recv(p.server, buf, 10, MSG_DONTWAIT));
}

// Bad memory does not matter where there is nothing to copy.
CASE(reads_of_nothing) {
    struct pair p = pair();
    CALL("empty", recv(p.client, nowhere, 3, MSG_DONTWAIT));
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    CALL("end", recv(p.client, nowhere, 3, 0));
    CALL("zero", recv(p.client, nowhere, 0, 0));
}

// Socket addresses in memory that is not there, for each call that takes or gives one.
CASE(addresses) {
    struct pair p = pair();
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    CALL("name", getsockname(p.client, nowhere, &len));
    CALL("name_len", getsockname(p.client, (struct sockaddr *)&a, nowhere));
    CALL("name_null", getsockname(p.client, NULL, NULL));
    CALL("name_null_len", getsockname(p.client, NULL, &len));
    CALL("peer", getpeername(p.client, nowhere, &len));
    int c = tcp();
    CALL("connect", connect(c, nowhere, sizeof a));
    CALL("connect_null", connect(c, NULL, sizeof a));
    CALL("bind", bind(c, nowhere, sizeof a));
    CALL("connect_again", connect(p.client, nowhere, sizeof a));
    MUST(connect_to(c, p.listener));
    wait_events(p.listener, POLLIN);
    CALL("accept", accept(p.listener, nowhere, &len));
    nonblocking(p.listener, true);
    CALL("gone", accept(p.listener, NULL, NULL));
    CALL("sendto", sendto(p.client, "x", 1, 0, nowhere, sizeof a));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("recvfrom", recvfrom(p.client, buf, 1, 0, nowhere, &len));
    MUST(write(p.server, "x", 1));
    wait_unread(p.client, 1);
    CALL("recvfrom_len", recvfrom(p.client, buf, 1, 0, (struct sockaddr *)&a, nowhere));
}

// Option values in memory that is not there.
CASE(options) {
    struct pair p = pair();
    int value = 1;
    socklen_t len = sizeof value;
    CALL("set", setsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, nowhere, 4));
    CALL("set_null", setsockopt(p.client, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
    CALL("set_linger", setsockopt(p.client, SOL_SOCKET, SO_LINGER, nowhere, sizeof(struct linger)));
    CALL("set_name", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, nowhere, 4));
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_TYPE, nowhere, &len));
    CALL("get_len", getsockopt(p.client, SOL_SOCKET, SO_TYPE, &value, nowhere));
    CALL("get_tcp", getsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, NULL, &len));
    len = sizeof(struct tcp_info);
    CALL("get_info", getsockopt(p.client, IPPROTO_TCP, TCP_INFO, nowhere, &len));
    CALL("fionread", ioctl(p.client, FIONREAD, nowhere));
    CALL("outq", ioctl(p.client, SIOCOUTQ, NULL));
    CALL("fionbio", ioctl(p.client, FIONBIO, nowhere));
}

// Poll, select and epoll with memory that is not there.
CASE(waits) {
    struct pair p = pair();
    CALL("poll", poll(nowhere, 1, 0));
    struct pollfd f = {p.client, POLLOUT, 0};
    CALL("ppoll_mask", ppoll(&f, 1, &(struct timespec){0, 0}, nowhere));
    fd_set w;
    FD_ZERO(&w); FD_SET(p.client, &w);
    CALL("select_set", select(p.client + 1, nowhere, &w, NULL, &(struct timeval){0, 0}));
    int ep = (int)MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLOUT, {0}};
    CALL("ctl", epoll_ctl(ep, EPOLL_CTL_ADD, p.client, nowhere));
    CALL("ctl_null", epoll_ctl(ep, EPOLL_CTL_ADD, p.client, NULL));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, p.client, &e));
    CALL("wait", epoll_wait(ep, nowhere, 1, 0));
    CALL("wait_null", epoll_wait(ep, NULL, 1, 0));
    CALL("then", epoll_wait(ep, &e, 1, 0));
}

// Sendfile with an offset in memory that is not there sends nothing.
CASE(sendfile_offset) {
    struct pair p = pair();
    int f = (int)MUST(memfd_create("file", 0));
    MUST(write(f, "abc", 3));
    CALL("sendfile", sendfile(p.client, f, nowhere, 3));
    CALL("peer", recv(p.server, buf, 10, MSG_DONTWAIT));
}

static volatile sig_atomic_t faults;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    faults++;
    mprotect((void *)((unsigned long)info->si_addr & ~4095ul), 4096, PROT_READ | PROT_WRITE);
}

// A program's own SIGSEGV handler stays in place, and does not run for the buffers of calls.
CASE(own_handler) {
    struct pair p = pair();
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &a, NULL));
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL("send", send(p.client, page, 1, 0));
    say("faults", "%d", faults);
    *(volatile char *)page = 'x';
    say("own", "%d", faults);
    struct sigaction got;
    MUST(sigaction(SIGSEGV, NULL, &got));
    say("same", "%d", got.sa_sigaction == on_fault);
}
