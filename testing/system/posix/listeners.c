// Listeners that all kinds of clients reach: one that Towpath carries, and one that it leaves to the kernel.
#include "conformance.h"

#define THEME "listeners"

// A client that stays the kernel's: it has IP options.
static int plain(int listener) {
    int fd = tcp();
    MUST(setsockopt(fd, IPPROTO_IP, IP_OPTIONS, "\1\1\1", 4));
    MUST(connect_to(fd, listener));
    return fd;
}

static int usual(int listener) {
    int fd = tcp();
    MUST(connect_to(fd, listener));
    return fd;
}

// Accepts `count` connections and says how many of the bytes that their clients sent came.
static void accept_all(const char *key, int fd, int count, int flags) {
    char sum = 0;
    for (int n = 0; n < count; n++) {
        struct sockaddr_in peer = {0};
        socklen_t len = sizeof peer;
        wait_events(fd, POLLIN);
        int s = MUST(accept4(fd, (struct sockaddr *)&peer, &len, flags));
        nonblocking(s, false);
        char byte = 0;
        MUST(recv(s, &byte, 1, 0));
        sum += byte;
        if (peer.sin_family != AF_INET || len != sizeof peer || peer.sin_port == 0) say("peer", "wrong");
        close(s);
    }
    say(key, "%d", sum);
}

// Clients of both kinds are accepted, in a blocking and in a non-blocking way.
CASE(both_kinds_of_clients) {
    int fd = listening();
    for (int round = 0; round < 2; round++) {
        nonblocking(fd, round);
        int one = plain(fd), other = usual(fd);
        send(one, "\1", 1, 0);
        send(other, "\2", 1, 0);
        accept_all("both", fd, 2, 0);
        close(one);
        close(other);
    }
    CALL("none", accept(fd, NULL, NULL));
    CALL("flags", accept4(fd, NULL, NULL, 1));
}

static void connect_plain(void *listener) { plain(*(int *)listener); }

// An accept that sleeps is woken by either.
CASE(a_sleeping_accept) {
    int fd = listening();
    pthread_t thread = when_asleep(connect_plain, &fd);
    int s = MUST(accept(fd, NULL, NULL));
    pthread_join(thread, NULL);
    say("flags", "%d %d", fcntl(s, F_GETFL) & O_NONBLOCK, fcntl(s, F_GETFD));
}

// The new descriptor has the flags of accept4, whatever those of the listener are.
CASE(flags_of_accepted) {
    int fd = listening();
    nonblocking(fd, true);
    for (int flags = 0; flags < 2; flags++) {
        plain(fd);
        wait_events(fd, POLLIN);
        int s = MUST(accept4(fd, NULL, NULL, flags ? SOCK_NONBLOCK | SOCK_CLOEXEC : 0));
        say("flags", "%d %d", (fcntl(s, F_GETFL) & O_NONBLOCK) != 0, fcntl(s, F_GETFD));
    }
    say("own", "%d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    int off = 0;
    CALL("ioctl", ioctl(fd, FIONBIO, &off));
    say("own", "%d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
}

// Each mode of epoll tells of a client of either kind once.
CASE(events_of_both) {
    unsigned modes[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLEXCLUSIVE};
    for (int n = 0; n < 8; n++) {
        int fd = listening();
        nonblocking(fd, true);
        int ep = epoll_of(fd, modes[n / 2]);
        wait_one("idle", ep, 0);
        n % 2 ? plain(fd) : usual(fd);
        wait_one("client", ep, 5000);
        wait_one("again", ep, 0);
        MUST(accept(fd, NULL, NULL));
        wait_one("after", ep, 0);
        close(ep);
        close(fd);
    }
}

// Options of the listener hold for clients of either kind.
CASE(inherited_options) {
    int fd = listening();
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 3);
    for (int n = 0; n < 2; n++) {
        n ? plain(fd) : usual(fd);
        int s = MUST(accept(fd, NULL, NULL));
        say("of", "%d %d %d %d", get_int(s, IPPROTO_TCP, TCP_NODELAY), get_int(s, SOL_SOCKET, SO_KEEPALIVE),
            get_int(s, IPPROTO_TCP, TCP_KEEPIDLE), get_int(s, SOL_SOCKET, SO_RCVLOWAT));
    }
    CALL("wrong", set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 0));
    CALL("filter", set_int(fd, SOL_SOCKET, SO_DETACH_FILTER, 0));
    CALL("short", setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, NULL, 0));
}

// After shutdown nobody is accepted. A port that the kernel has chosen goes with it; one that the program has named stays.
CASE(shutdown_and_listen_again) {
    for (int named = 0; named < 2; named++) {
        int fd = listening();
        if (named) {
            int port = port_of(fd);
            close(fd);
            fd = bound(port);
            MUST(listen(fd, 5));
        }
        int port = port_of(fd);
        CALL("write", shutdown(fd, SHUT_WR));
        CALL("read", shutdown(fd, SHUT_RD));
        CALL("twice", shutdown(fd, SHUT_RD));
        CALL("accept", accept(fd, NULL, NULL));
        say_events("events", events_of(fd));
        say("listens", "%d", get_int(fd, SOL_SOCKET, SO_ACCEPTCONN));
        CALL("listen", listen(fd, 5));
        say("same", "%d", port_of(fd) == port);
        int one = plain(fd), other = usual(fd);
        send(one, "\1", 1, 0);
        send(other, "\2", 1, 0);
        accept_all("both", fd, 2, 0);
        close(fd);
    }
}

// A copy goes on when the first descriptor is closed; after the last the port can be bound at once.
CASE(copies_and_the_port) {
    int fd = listening(), copy = MUST(dup(fd));
    close(fd);
    int one = plain(copy), other = usual(copy);
    send(one, "\1", 1, 0);
    send(other, "\2", 1, 0);
    accept_all("both", copy, 2, SOCK_NONBLOCK);
    close(copy);
    for (int n = 0; n < 20; n++) {
        fd = listening();
        int port = port_of(fd);
        close(fd);
        fd = bound(port);
        if (listen(fd, 5)) say("listen", "%d", errno);
        close(fd);
    }
}

// A forked child accepts. Programs that are executed leave the listener's mode as it is.
CASE(children_accept) {
    int fd = listening();
    pid_t child = MUST(fork());
    if (child == 0) {
        // A stack that leaves plain clients out fails the case before they are accepted.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int n = 0; n < 2; n++) {
            char byte;
            int s = MUST(accept(fd, NULL, NULL));
            MUST(recv(s, &byte, 1, 0));
            close(s);
        }
        _exit(0);
    }
    int one = plain(fd), other = usual(fd);
    send(one, "\1", 1, 0);
    send(other, "\2", 1, 0);
    char end;
    CALL("end", recv(one, &end, 1, 0));
    CALL("end", recv(other, &end, 1, 0));
    int status = 0;
    MUST(waitpid(child, &status, 0));
    say("status", "%d", status);
    say("blocks", "%d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    CALL("system", system("true"));
    say("blocks", "%d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
}
