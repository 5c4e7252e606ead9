// Connecting, listening, accepting, and the names of sockets in each state.
#include "conformance.h"
#define THEME "connect"

static char buf[1000];

// Prints an address. A port is printed as 0, as the same as `port`, or as another one, because its number changes.
static void say_name(const char *key, int fd, int (*ask)(int, struct sockaddr *, socklen_t *), int port) {
    struct sockaddr_in a;
    memset(&a, 0, sizeof a);
    socklen_t len = sizeof a;
    if (CALL(key, ask(fd, (struct sockaddr *)&a, &len)) != 0) return;
    int p = ntohs(a.sin_port);
    say("is", "%d/%s/%s/%d", a.sin_family, inet_ntoa(a.sin_addr), p == 0 ? "0" : p == port ? "same" : "other", (int)len);
}

// The names of a fresh socket: getsockname gives 0.0.0.0:0, and getpeername ENOTCONN.
CASE(names_unbound) {
    int fd = tcp();
    say_name("sock", fd, getsockname, 0);
    say_name("peer", fd, getpeername, 0);
}

// After bind to port 0, getsockname has the port that the kernel chose.
CASE(names_bound) {
    int fd = bound(0);
    say_name("sock", fd, getsockname, port_of(fd));
    say_name("peer", fd, getpeername, 0);
}

// A listener has its own name and no peer.
CASE(names_listening) {
    int fd = listening();
    say_name("sock", fd, getsockname, port_of(fd));
    say_name("peer", fd, getpeername, 0);
}

// Both ends of a connection name each other.
CASE(names_connected) {
    struct pair p = pair();
    say_name("client", p.client, getsockname, port_of(p.client));
    say_name("client_peer", p.client, getpeername, port_of(p.listener));
    say_name("server", p.server, getsockname, port_of(p.listener));
    say_name("server_peer", p.server, getpeername, port_of(p.client));
}

// After shutdown in both directions on one end, both ends still have their names.
CASE(names_after_shutdown) {
    struct pair p = pair();
    int port = port_of(p.client);
    MUST(shutdown(p.client, SHUT_RDWR));
    say_name("sock", p.client, getsockname, port);
    say_name("peer", p.client, getpeername, port_of(p.listener));
    wait_events(p.server, POLLRDHUP);
    say_name("server_peer", p.server, getpeername, port);
}

// Names cut to the length that is given. The length becomes the full one; a negative length is an error.
CASE(names_cut) {
    struct pair p = pair();
    struct sockaddr_in a;
    memset(&a, 7, sizeof a);
    socklen_t len = 3;
    CALL("three", getsockname(p.client, (struct sockaddr *)&a, &len));
    say("len", "%d family=%d", (int)len, a.sin_family);
    len = 0;
    CALL("none", getpeername(p.client, (struct sockaddr *)&a, &len));
    say("len0", "%d", (int)len);
    len = (socklen_t)-1;
    CALL("negative", getsockname(p.client, (struct sockaddr *)&a, &len));
    len = 100;
    CALL("long", getsockname(p.client, (struct sockaddr *)&a, &len));
    say("len100", "%d", (int)len);
}

// Listen without bind takes a free port on all addresses, to which others can connect.
CASE(listen_unbound) {
    int fd = tcp();
    CALL("listen", listen(fd, 5));
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    CALL("name", getsockname(fd, (struct sockaddr *)&a, &len));
    say("address", "%s %s=1", inet_ntoa(a.sin_addr), a.sin_port ? "port" : "none");
    int c = tcp();
    a = loopback(port_of(fd));
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("accept", accept(fd, NULL, NULL) >= 0);
}

// A second listen changes the backlog, as TCP_INFO of a listener shows it beside the connections that wait.
CASE(backlog_of_a_listener) {
    int fd = listening();
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    for (int backlog = 7; backlog > 0; backlog -= 5) {
        CALL("listen", listen(fd, backlog));
        CALL("info", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
        say("backlog", "%u %u", info.tcpi_sacked, info.tcpi_unacked);
    }
    int c = tcp();
    MUST(connect_to(c, fd));
    CALL("poll", poll((struct pollfd[]){{fd, POLLIN, 0}}, 1, 5000));
    CALL("info", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("waits", "%u %u", info.tcpi_sacked, info.tcpi_unacked);
    CALL("connected", listen(c, 1));
}

// The errors of bind: bound already, port in use, foreign address, wrong length or family, listening, connected.
CASE(bind_errors) {
    int fd = bound(0);
    struct sockaddr_in a = loopback(0);
    CALL("again", bind(fd, (struct sockaddr *)&a, sizeof a));
    int other = tcp();
    a = loopback(port_of(fd));
    CALL("in_use", bind(other, (struct sockaddr *)&a, sizeof a));
    a.sin_addr.s_addr = inet_addr("203.0.113.1");
    CALL("not_ours", bind(other, (struct sockaddr *)&a, sizeof a));
    a = loopback(0);
    CALL("short", bind(other, (struct sockaddr *)&a, 4));
    a.sin_family = AF_INET6;
    CALL("family", bind(other, (struct sockaddr *)&a, sizeof a));
    a.sin_family = AF_UNSPEC;
    CALL("unspec", bind(other, (struct sockaddr *)&a, sizeof a));
    CALL("listening", listen(fd, 5));
    a = loopback(0);
    CALL("bind_listener", bind(fd, (struct sockaddr *)&a, sizeof a));
    struct pair p = pair();
    CALL("bind_connected", bind(p.client, (struct sockaddr *)&a, sizeof a));
}

// A port with a listener cannot be bound again on the same or on any address, but on another one.
CASE(bind_a_listening_port) {
    int fd = listening();
    int other = tcp();
    struct sockaddr_in a = loopback(port_of(fd));
    CALL("plain", bind(other, (struct sockaddr *)&a, sizeof a));
    set_int(other, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL("reuse", bind(other, (struct sockaddr *)&a, sizeof a));
    a.sin_addr.s_addr = htonl(INADDR_ANY);
    CALL("any", bind(other, (struct sockaddr *)&a, sizeof a));
    a.sin_addr.s_addr = inet_addr("127.0.0.2");
    CALL("beside", bind(other, (struct sockaddr *)&a, sizeof a));
    CALL("listen", listen(other, 1));
}

// With SO_REUSEADDR two sockets can bind one port. Only the first can listen.
CASE(reuseaddr_twice_bound_one_listens) {
    int a = tcp(), b = tcp();
    set_int(a, SOL_SOCKET, SO_REUSEADDR, 1);
    set_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in address = loopback(0);
    MUST(bind(a, (struct sockaddr *)&address, sizeof address));
    address = loopback(port_of(a));
    CALL("bind", bind(b, (struct sockaddr *)&address, sizeof address));
    CALL("listen", listen(a, 1));
    CALL("listen2", listen(b, 1));
}

// A port is in use until its last connection ends, even with SO_REUSEADDR, if its listener had none.
CASE(reuseaddr_after_a_connection) {
    struct pair p = pair();
    int port = port_of(p.listener);
    close(p.listener);
    close(p.server);
    wait_events(p.client, POLLRDHUP);
    close(p.client);
    rest(50);
    int fd = tcp();
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in a = loopback(port);
    CALL("bind", bind(fd, (struct sockaddr *)&a, sizeof a));
    CALL("listen", listen(fd, 1));
}

// A port with a live connection is in use after its listener has closed, if the listener had no SO_REUSEADDR.
CASE(reuseaddr_with_a_live_connection) {
    struct pair p = pair();
    int port = port_of(p.listener);
    close(p.listener);
    int fd = tcp();
    struct sockaddr_in a = loopback(port);
    CALL("without", bind(fd, (struct sockaddr *)&a, sizeof a));
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL("with", bind(fd, (struct sockaddr *)&a, sizeof a));
}

// Once accept has returned, both ends of the connection are writable, and epoll says so at once.
CASE(connected_when_accepted) {
    int listener = listening(), both = 0;
    for (int i = 0; i < 50; i++) {
        int client = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        connect_to(client, listener);
        int server = (int)MUST(accept(listener, NULL, NULL)), ep = (int)MUST(epoll_create1(0));
        struct epoll_event out = {.events = EPOLLIN | EPOLLOUT | EPOLLET}, got[4];
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, server, &out));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, client, &out));
        both += epoll_wait(ep, got, 4, 1000) == 2;
        close(client);
        close(server);
        close(ep);
    }
    say("both", "%d", both);
}

static void say_bind_beside(int other) {
    int fd = tcp();
    struct sockaddr_in a = loopback(port_of(other));
    CALL("without", bind(fd, (struct sockaddr *)&a, sizeof a));
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL("with", bind(fd, (struct sockaddr *)&a, sizeof a));
    a = loopback(0);
    CALL("elsewhere", bind(fd, (struct sockaddr *)&a, sizeof a));
}

// The port that connect chose for a client is in use for bind.
CASE(bind_to_the_port_of_a_client) {
    struct pair p = pair();
    say_bind_beside(p.client);
}

// The port of a listener with SO_REUSEADDR is in use while it listens, and free once it is closed.
CASE(reuseaddr_to_the_port_of_a_listener) {
    int listener = tcp();
    set_int(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in a = loopback(0);
    MUST(bind(listener, (struct sockaddr *)&a, sizeof a));
    MUST(listen(listener, 4));
    say_bind_beside(listener);
    a = loopback(port_of(listener));
    MUST(close(listener));
    int next = tcp();
    set_int(next, SOL_SOCKET, SO_REUSEADDR, 1);
    CALL("after", bind(next, (struct sockaddr *)&a, sizeof a));
}

static int port_sharer(int port) {
    int fd = tcp();
    CALL("set", set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1));
    struct sockaddr_in a = loopback(port);
    CALL("bind", bind(fd, (struct sockaddr *)&a, sizeof a));
    CALL("listen", listen(fd, 16));
    return fd;
}

// SO_REUSEPORT: listeners on one port share its connections. One can be closed, and outsiders cannot bind the port.
CASE(reuseport_group) {
    int a = port_sharer(0), b = port_sharer(port_of(a)), got = 0;
    for (int i = 0; i < 10; i++) {
        int c = tcp();
        MUST(connect_to(c, a));
        struct pollfd fds[] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        if (poll(fds, 2, 3000) < 1) break;
        if (accept(fds[0].revents ? a : b, NULL, NULL) >= 0) got++;
    }
    say("accepted", "%d", got);
    close(a);
    int c = tcp();
    CALL("connect_rest", connect_to(c, b));
    CALL("accept_rest", accept(b, NULL, NULL) >= 0);
    int plain = tcp();
    struct sockaddr_in address = loopback(port_of(b));
    CALL("plain", bind(plain, (struct sockaddr *)&address, sizeof address));
}

// A refused connect gives its error once. The same socket can then connect again.
CASE(refused) {
    int fd = bound(0), c = tcp();
    struct sockaddr_in a = loopback(port_of(fd));
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("error", get_int(c, SOL_SOCKET, SO_ERROR));
    say_events("events", events_of(c));
    CALL("again", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("listen_then", listen(fd, 1));
    CALL("third", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("accept", accept(fd, NULL, NULL) >= 0);
}

// A refused non-blocking connect: its events, its error by SO_ERROR, and calls after that.
CASE(refused_nonblocking) {
    int fd = bound(0), c = tcp();
    struct sockaddr_in a = loopback(port_of(fd));
    nonblocking(c, true);
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    say_events("events", wait_events(c, POLLHUP));
    CALL("error", get_int(c, SOL_SOCKET, SO_ERROR));
    say_events("then", events_of(c));
    CALL("read", read(c, buf, 1));
    CALL("write", send(c, buf, 1, MSG_NOSIGNAL));
}

// A refused non-blocking connect reports its error by the next connect; the one after that tries again.
CASE(refused_nonblocking_asked_by_connect) {
    int fd = bound(0), c = tcp();
    struct sockaddr_in a = loopback(port_of(fd));
    nonblocking(c, true);
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    wait_events(c, POLLHUP);
    CALL("second", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("third", connect(c, (struct sockaddr *)&a, sizeof a));
}

// After a refused non-blocking connect the program tries again, and by then there is a listener.
CASE(refused_nonblocking_then_there) {
    for (int asked = 0; asked < 2; asked++) {
        int fd = bound(0), c = tcp();
        struct sockaddr_in a = loopback(port_of(fd));
        nonblocking(c, true);
        CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
        wait_events(c, POLLHUP);
        if (asked) CALL("error", get_int(c, SOL_SOCKET, SO_ERROR));
        CALL("listen", listen(fd, 1));
        CALL("second", connect(c, (struct sockaddr *)&a, sizeof a));
        CALL("third", connect(c, (struct sockaddr *)&a, sizeof a));
        say_events("events", wait_events(c, POLLOUT));
        CALL("accept", accept(fd, NULL, NULL) >= 0);
    }
}
// A refused non-blocking connect reports its error by read, and only once.
CASE(refused_nonblocking_asked_by_read) {
    int fd = bound(0), c = tcp();
    struct sockaddr_in a = loopback(port_of(fd));
    nonblocking(c, true);
    connect(c, (struct sockaddr *)&a, sizeof a);
    wait_events(c, POLLHUP);
    CALL("read", read(c, buf, 1));
    CALL("read2", read(c, buf, 1));
    CALL("error", get_int(c, SOL_SOCKET, SO_ERROR));
}

// A non-blocking connect: EINPROGRESS, writable when established, 0 once, then EISCONN.
CASE(nonblocking_connect) {
    int l = listening(), c = tcp();
    nonblocking(c, true);
    CALL("connect", connect_to(c, l));
    say_events("events", wait_events(c, POLLOUT));
    CALL("error", get_int(c, SOL_SOCKET, SO_ERROR));
    CALL("second", connect_to(c, l));
    CALL("third", connect_to(c, l));
    CALL("send", send(c, "abc", 3, 0));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("flags", fcntl(s, F_GETFL) & O_NONBLOCK);
    CALL("read", read(s, buf, 10));
}

// Connect on sockets that are connected, accepted or listening; listen and accept on a connected one.
CASE(connect_twice) {
    struct pair p = pair();
    CALL("again", connect_to(p.client, p.listener));
    CALL("accepted", connect_to(p.server, p.listener));
    int l = listening();
    CALL("listener", connect_to(l, p.listener));
    CALL("listen_connected", listen(p.client, 5));
    CALL("accept_connected", accept(p.client, NULL, NULL));
}

// The errors of connect for wrong lengths, families, ports and addresses.
CASE(connect_wrong) {
    int fd = tcp();
    struct sockaddr_in a = loopback(1);
    CALL("short", connect(fd, (struct sockaddr *)&a, 8));
    CALL("zero", connect(fd, (struct sockaddr *)&a, 0));
    CALL("huge", connect(fd, (struct sockaddr *)&a, 1000));
    a.sin_family = AF_INET6;
    CALL("family", connect(fd, (struct sockaddr *)&a, sizeof a));
    a.sin_family = AF_UNSPEC;
    CALL("unspec", connect(fd, (struct sockaddr *)&a, sizeof a));
    a = loopback(0);
    CALL("port0", connect(fd, (struct sockaddr *)&a, sizeof a));
    a.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    a.sin_port = htons(9);
    CALL("broadcast", connect(fd, (struct sockaddr *)&a, sizeof a));
    CALL("no_descriptor", connect(-1, (struct sockaddr *)&a, sizeof a));
}

// Connect accepts an address that is longer than sockaddr_in.
CASE(connect_longer_address) {
    int l = listening(), c = tcp();
    struct sockaddr_storage a = {0};
    struct sockaddr_in in = loopback(port_of(l));
    memcpy(&a, &in, sizeof in);
    CALL("storage", connect(c, (struct sockaddr *)&a, sizeof a));
}

// Connecting to 0.0.0.0 connects to this host.
CASE(connect_any_is_this_host) {
    int l = tcp();
    MUST(listen(l, 5));
    int c = tcp();
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port_of(l))};
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    say_name("peer", c, getpeername, port_of(l));
    say_name("sock", c, getsockname, 0);
}

// A bound socket that connects to its own port is connected to itself (RFC 9293 simultaneous open).
CASE(connect_to_self) {
    int fd = bound(0);
    CALL("connect", connect_to(fd, fd));
    say_name("peer", fd, getpeername, port_of(fd));
    CALL("write", write(fd, "abc", 3));
    CALL("read", recv(fd, buf, 3, MSG_WAITALL));
    say_bytes("bytes", buf, 3);
    MUST(shutdown(fd, SHUT_WR));
    say_events("events", wait_events(fd, POLLHUP));
    CALL("end", read(fd, buf, 1));
}

// A connect from a bound socket uses the bound port, and the acceptor sees it.
CASE(connect_from_a_bound_port) {
    int l = listening(), c = bound(0), port = port_of(c);
    CALL("connect", connect_to(c, l));
    say("same", "%d", port_of(c) == port);
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    CALL("accept", accept(l, (struct sockaddr *)&a, &len) >= 0);
    say("peer", "%d len=%d", ntohs(a.sin_port) == port, (int)len);
}

// SO_REUSEADDR on one socket only does not share a port; the other's connect works.
CASE(simultaneous_connects_from_one_port) {
    int l = listening(), a = bound(0), b = tcp();
    set_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in address = loopback(port_of(a));
    CALL("bind", bind(b, (struct sockaddr *)&address, sizeof address));
    CALL("connect", connect_to(a, l));
}

// The errors of accept: not listening, nothing to accept, unknown flags, a negative length, a closed descriptor.
CASE(accept_errors) {
    int fd = tcp();
    CALL("unbound", accept(fd, NULL, NULL));
    int b = bound(0);
    CALL("bound", accept(b, NULL, NULL));
    int l = listening();
    nonblocking(l, true);
    CALL("none", accept(l, NULL, NULL));
    CALL("flags", accept4(l, NULL, NULL, 0x7));
    int c = tcp();
    MUST(connect_to(c, l));
    wait_events(l, POLLIN);
    struct sockaddr_in a;
    socklen_t len = (socklen_t)-1;
    CALL("negative", accept(l, (struct sockaddr *)&a, &len));
    CALL("gone", accept(l, NULL, NULL));
    CALL("closed", accept(-1, NULL, NULL));
}

// An accepted socket gets its flags from accept4, not from the listener. The peer's address is cut to its room.
CASE(accept_flags) {
    int l = listening(), c[3];
    for (int i = 0; i < 3; i++) c[i] = tcp(), MUST(connect_to(c[i], l));
    nonblocking(l, true);
    wait_events(l, POLLIN);
    int a = (int)MUST(accept(l, NULL, NULL));
    say("plain", "%x,%x", fcntl(a, F_GETFL), fcntl(a, F_GETFD));
    wait_events(l, POLLIN);
    int b = (int)MUST(accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    say("both", "%x,%x", fcntl(b, F_GETFL), fcntl(b, F_GETFD));
    struct sockaddr_in address;
    memset(&address, 7, sizeof address);
    socklen_t len = 4;
    nonblocking(l, false);
    CALL("cut", accept(l, (struct sockaddr *)&address, &len) >= 0);
    say("len", "%d family=%d", (int)len, address.sin_family);
}

// A connection that the peer has closed is accepted, with its data and then the end.
CASE(accept_a_closed_connection) {
    int l = listening(), c = tcp();
    MUST(connect_to(c, l));
    MUST(write(c, "abc", 3));
    MUST(close(c));
    rest(50);
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("read", recv(s, buf, 10, MSG_WAITALL));
    CALL("end", read(s, buf, 10));
}

// Closing a listener resets the connections that were not accepted.
CASE(listener_closed_resets_the_waiting) {
    int l = listening(), c = tcp();
    MUST(connect_to(c, l));
    wait_events(l, POLLIN);
    MUST(close(l));
    say_events("events", wait_events(c, POLLHUP));
    CALL("read", read(c, buf, 1));
}

// Listen on a listener changes the backlog, whatever its value.
CASE(listen_again) {
    int l = listening();
    CALL("again", listen(l, 1));
    CALL("zero", listen(l, 0));
    CALL("negative", listen(l, -1));
    CALL("accepting", get_int(l, SOL_SOCKET, SO_ACCEPTCONN));
}

// A backlog of 0 lets one connection in.
CASE(backlog_zero) {
    int l = bound(0);
    MUST(listen(l, 0));
    int c = tcp();
    CALL("connect", connect_to(c, l));
    CALL("accept", accept(l, NULL, NULL) >= 0);
}

// With SO_REUSEADDR two sockets bind one port, on any address and on one. Only the first can listen.
CASE(listen_after_a_bind_in_use) {
    int a = tcp(), b = tcp();
    set_int(a, SOL_SOCKET, SO_REUSEADDR, 1);
    set_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in address = {.sin_family = AF_INET};
    MUST(bind(a, (struct sockaddr *)&address, sizeof address));
    address = loopback(port_of(a));
    CALL("bind_specific", bind(b, (struct sockaddr *)&address, sizeof address));
    CALL("listen_any", listen(a, 1));
    CALL("listen_specific", listen(b, 1));
}

// The arguments of socket: unknown types, protocols and families, and flags. The number is the lowest free one.
CASE(socket_arguments) {
    CALL("type", socket(AF_INET, SOCK_STREAM | 0x100, 0));
    CALL("protocol", socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    CALL("tcp", socket(AF_INET, SOCK_STREAM, IPPROTO_TCP) >= 0);
    CALL("family", socket(1000, SOCK_STREAM, 0));
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    say("flags", "%x,%x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
    MUST(close(fd));
    CALL("lowest", tcp() == fd);
}

// Accept takes the lowest free descriptor number.
CASE(lowest_descriptor) {
    struct pair p = pair();
    int c = tcp();
    MUST(connect_to(c, p.listener));
    close(p.client);
    int s = (int)MUST(accept(p.listener, NULL, NULL));
    say("lowest", "%d", s == p.client);
}
