// IPv6: the basics, and both address families on one socket.
#include "conformance.h"
#define THEME "six"

static char buf[100];

static void say_name6(const char *key, int fd, int (*ask)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in6 a;
    memset(&a, 7, sizeof a);
    socklen_t len = sizeof a;
    char text[100];
    if (CALL(key, ask(fd, (struct sockaddr *)&a, &len)) != 0) return;
    say("is", "%d/%s/%d/%u/%u", a.sin6_family, inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text), (int)len,
        a.sin6_flowinfo, a.sin6_scope_id);
}

// Data, names and events over IPv6.
CASE(data) {
    struct pair p = pair6();
    CALL("write", write(p.client, "hello", 5));
    CALL("read", read(p.server, buf, 100));
    say_name6("client", p.client, getsockname);
    say_name6("peer", p.client, getpeername);
    say_name6("server", p.server, getpeername);
    say_events("events", events_of(p.client));
    MUST(close(p.client));
    say_events("end", wait_events(p.server, POLLRDHUP));
}

// A fresh IPv6 socket: names, errors and options.
CASE(unconnected) {
    int fd = tcp6();
    say_name6("sock", fd, getsockname);
    say_name6("peer", fd, getpeername);
    CALL("read", read(fd, buf, 1));
    CALL("v6only", get_int(fd, IPPROTO_IPV6, IPV6_V6ONLY));
    CALL("domain", get_int(fd, SOL_SOCKET, SO_DOMAIN));
}

// A listener of both families accepts IPv4. Its names are mapped, its options are of both levels.
CASE(mapped) {
    int l = tcp6();
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    MUST(bind(l, (struct sockaddr *)&any, sizeof any));
    MUST(listen(l, 5));
    int c = tcp();
    struct sockaddr_in a = loopback(port_of(l));
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    int s = (int)MUST(accept(l, NULL, NULL));
    say_name6("server", s, getsockname);
    say_name6("peer", s, getpeername);
    CALL("domain", get_int(s, SOL_SOCKET, SO_DOMAIN));
    CALL("tos", get_int(s, IPPROTO_IP, IP_TOS));
    CALL("ttl", get_int(s, IPPROTO_IP, IP_TTL));
    CALL("class", get_int(s, IPPROTO_IPV6, IPV6_TCLASS));
}

// An IPv6 socket connects to a mapped IPv4 address.
CASE(mapped_connect) {
    int l = listening(), c = tcp6();
    struct sockaddr_in6 a = loopback6(port_of(l));
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.sin6_addr);
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    say_name6("sock", c, getsockname);
    say_name6("peer", c, getpeername);
}

// An IPv6-only socket cannot connect to a mapped address.
CASE(mapped_refused_by_v6only) {
    int l = listening(), c = tcp6();
    set_int(c, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    struct sockaddr_in6 a = loopback6(port_of(l));
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.sin6_addr);
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
}

// An AF_INET address on an IPv6 socket, and IPv6 addresses that are too short.
CASE(four_address_on_six) {
    int l = listening(), c = tcp6();
    struct sockaddr_in a = loopback(port_of(l));
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("bind", bind(c, (struct sockaddr *)&a, sizeof a));
    struct sockaddr_in6 six = loopback6(port_of(l));
    CALL("short", connect(c, (struct sockaddr *)&six, 20));
    CALL("rfc2133", connect(c, (struct sockaddr *)&six, 24));
}

// An IPv6-only listener is not there for IPv4. IPV6_V6ONLY cannot be set once it is bound.
CASE(only_six_listener) {
    int l = tcp6();
    set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    MUST(bind(l, (struct sockaddr *)&any, sizeof any));
    MUST(listen(l, 5));
    int c = tcp(), d = tcp6();
    struct sockaddr_in a = loopback(port_of(l));
    struct sockaddr_in6 six = loopback6(port_of(l));
    CALL("four", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("six", connect(d, (struct sockaddr *)&six, sizeof six));
    CALL("set_after", set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 0));
    CALL("get_after", get_int(l, IPPROTO_IPV6, IPV6_V6ONLY));
}

// An IPv6-only listener and an IPv4 listener share a port number.
CASE(both_listeners_on_one_port) {
    int four = -1, l = -1, bound = -1;
    struct sockaddr_in a = {.sin_family = AF_INET};
    // Another program on this host may use the port with IPv4, so several ports are tried.
    for (int tries = 0; bound != 0 && tries < 20; tries++) {
        close(four);
        close(l);
        l = tcp6();
        set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        struct sockaddr_in6 any = {.sin6_family = AF_INET6};
        MUST(bind(l, (struct sockaddr *)&any, sizeof any));
        MUST(listen(l, 5));
        four = tcp();
        a.sin_port = htons((uint16_t)port_of(l));
        bound = bind(four, (struct sockaddr *)&a, sizeof a);
    }
    CALL("bind", bound);
    CALL("listen", listen(four, 5));
    int c = tcp();
    a = loopback(port_of(l));
    CALL("connect", connect(c, (struct sockaddr *)&a, sizeof a));
    CALL("accept", accept(four, NULL, NULL) >= 0);
}

// Options of IPv6 on an IPv4 socket, and the reverse.
CASE(options_of_the_other_family) {
    struct pair p = pair();
    CALL("get", get_int(p.client, IPPROTO_IPV6, IPV6_TCLASS));
    CALL("set", set_int(p.client, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 3));
    struct pair q = pair6();
    CALL("get_hops", get_int(q.client, IPPROTO_IPV6, IPV6_UNICAST_HOPS));
    CALL("set_class", set_int(q.client, IPPROTO_IPV6, IPV6_TCLASS, 0x20));
    CALL("get_class", get_int(q.client, IPPROTO_IPV6, IPV6_TCLASS));
    CALL("too_much", set_int(q.client, IPPROTO_IPV6, IPV6_TCLASS, 0x200));
    CALL("tos", get_int(q.client, IPPROTO_IP, IP_TOS));
}

// A refused connect and a connect to oneself over IPv6.
CASE(refused_and_self) {
    int fd = tcp6();
    struct sockaddr_in6 a = loopback6(0);
    MUST(bind(fd, (struct sockaddr *)&a, sizeof a));
    int c = tcp6();
    CALL("refused", connect_to(c, fd));
    CALL("self", connect_to(fd, fd));
}

// A reset over IPv6.
CASE(reset) {
    struct pair p = pair6();
    struct linger now = {1, 0};
    MUST(setsockopt(p.server, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    MUST(close(p.server));
    say_events("events", wait_events(p.client, POLLHUP));
    CALL("read", read(p.client, buf, 1));
    CALL("write", send(p.client, "x", 1, MSG_NOSIGNAL));
}
