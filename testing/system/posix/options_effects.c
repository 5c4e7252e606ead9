// Socket options whose effect is more than a number: what they add to a receive, forbid, or tell.
#include "conformance.h"
#define THEME "options"
#include <linux/filter.h>
#include <net/if.h>

static char buf[1000];

// Receives with room for so many bytes of control messages, and prints the control message.
static void ask_inquiry(const char *key, int fd, size_t room, size_t bytes) {
    char control[64] = "";
    struct msghdr m = {.msg_iov = &(struct iovec){buf, bytes}, .msg_iovlen = 1, .msg_control = room ? control : NULL,
                       .msg_controllen = room};
    CALL(key, recvmsg(fd, &m, MSG_DONTWAIT));
    struct cmsghdr *c = (struct cmsghdr *)control;
    int unread;
    memcpy(&unread, CMSG_DATA(c), sizeof unread);
    say("control", "%zu flags=%x len=%zu level=%d type=%d unread=%d", (size_t)m.msg_controllen, m.msg_flags,
        (size_t)c->cmsg_len, c->cmsg_level, c->cmsg_type, unread);
}

// TCP_INQ: recvmsg tells how many bytes are left, also cut to the room that is given, and across the end of the stream.
CASE(inquiry) {
    struct pair p = pair();
    CALL("set", set_int(p.client, IPPROTO_TCP, TCP_INQ, 1));
    MUST(write(p.server, "0123456789", 10));
    wait_unread(p.client, 10);
    ask_inquiry("whole", p.client, 64, 1);
    ask_inquiry("exact", p.client, CMSG_SPACE(sizeof(int)), 1);
    ask_inquiry("unpadded", p.client, CMSG_LEN(sizeof(int)), 1);
    ask_inquiry("cut", p.client, CMSG_LEN(2), 1);
    ask_inquiry("header", p.client, CMSG_LEN(0), 1);
    ask_inquiry("short", p.client, CMSG_LEN(0) - 1, 1);
    ask_inquiry("none", p.client, 0, 1);
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    ask_inquiry("before_end", p.client, 64, 1);
    ask_inquiry("last", p.client, 64, 10);
    ask_inquiry("end", p.client, 64, 10);
    CALL("off", set_int(p.client, IPPROTO_TCP, TCP_INQ, 0));
    ask_inquiry("without", p.client, 64, 10);
}

// TCP_INQ that was set before connect, and on a listener.
CASE(inquiry_before) {
    int l = listening(), c = tcp();
    MUST(set_int(c, IPPROTO_TCP, TCP_INQ, 1));
    MUST(set_int(l, IPPROTO_TCP, TCP_INQ, 1));
    MUST(connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    MUST(write(c, "abc", 3));
    MUST(write(s, "abc", 3));
    wait_unread(c, 3);
    wait_unread(s, 3);
    ask_inquiry("client", c, 64, 1);
    ask_inquiry("server", s, 64, 1);
    CALL("get", get_int(s, IPPROTO_TCP, TCP_INQ));
}

// SO_ZEROCOPY, TCP_SAVE_SYN and SO_TIMESTAMPING on sockets in all states, and a program that spreads connections. MSG_ZEROCOPY without SO_ZEROCOPY copies.
CASE(refused) {
    struct pair p = pair();
    int fds[] = {tcp(), p.client, p.listener};
    for (int i = 0; i < 3; i++) {
        CALL("set_zerocopy", set_int(fds[i], SOL_SOCKET, SO_ZEROCOPY, 1));
        CALL("zerocopy", get_int(fds[i], SOL_SOCKET, SO_ZEROCOPY));
        CALL("set_save_syn", set_int(fds[i], IPPROTO_TCP, TCP_SAVE_SYN, 1));
        CALL("save_syn", get_int(fds[i], IPPROTO_TCP, TCP_SAVE_SYN));
        CALL("set_timestamping", set_int(fds[i], SOL_SOCKET, SO_TIMESTAMPING, 1 << 4));
    }
    struct sock_filter first = {.code = BPF_RET | BPF_K};
    int shared = tcp();
    MUST(set_int(shared, SOL_SOCKET, SO_REUSEPORT, 1));
    CALL("set_program", setsockopt(shared, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &(struct sock_fprog){1, &first},
                                   sizeof(struct sock_fprog)));
    CALL("send", send(p.server, "abc", 3, MSG_ZEROCOPY));
    CALL("received", recv(p.client, buf, 3, MSG_WAITALL));
    say_events("no_completion", events_of(p.server));
}

static void peek(const char *key, int fd, size_t bytes, int flags) {
    char got[100] = "";
    ssize_t n = recv(fd, got, bytes, MSG_DONTWAIT | flags);
    say_result(key, n);
    if (n > 0) say_bytes("bytes", got, n);
    CALL("offset", get_int(fd, SOL_SOCKET, SO_PEEK_OFF));
}

// SO_PEEK_OFF: MSG_PEEK moves it on, reads of any kind move it back.
CASE(peek_offset) {
    struct pair p = pair();
    MUST(write(p.server, "0123456789abcdef", 16));
    wait_unread(p.client, 16);
    CALL("set", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 0));
    peek("first", p.client, 4, MSG_PEEK);
    peek("second", p.client, 4, MSG_PEEK);
    peek("read", p.client, 3, 0);
    peek("third", p.client, 2, MSG_PEEK);
    peek("trunc", p.client, 2, MSG_PEEK | MSG_TRUNC);
    peek("all", p.client, 100, MSG_PEEK);
    peek("none", p.client, 100, MSG_PEEK);
    CALL("plain_read", read(p.client, buf, 2));
    CALL("after", get_int(p.client, SOL_SOCKET, SO_PEEK_OFF));
    CALL("further", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 3));
    peek("from_three", p.client, 3, MSG_PEEK);
    CALL("far", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 1000));
    peek("beyond", p.client, 3, MSG_PEEK);
    CALL("again", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 2));
    peek("discard", p.client, 5, MSG_TRUNC);
    peek("at_zero", p.client, 1, MSG_PEEK);
    CALL("off", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, -1));
    peek("plain", p.client, 2, MSG_PEEK);
    peek("twice", p.client, 2, MSG_PEEK);
    CALL("negative", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, -77));
    peek("rest", p.client, 100, 0);
}

static void peek_rest(void *fd) { MUST(write((int)(long)fd, "defgh", 5)); }

// A peek with SO_PEEK_OFF waits for bytes behind it, with MSG_WAITALL for all, and then sees the end.
CASE(peek_offset_waits) {
    struct pair p = pair();
    CALL("set", set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 1));
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    CALL("first", recv(p.client, buf, 2, MSG_PEEK));
    pthread_t one = when_asleep(peek_rest, (void *)(long)p.server);
    long n = CALL("waited", recv(p.client, buf, 2, MSG_PEEK));
    say_bytes("bytes", buf, n);
    MUST(pthread_join(one, NULL));
    one = when_asleep(peek_rest, (void *)(long)p.server);
    n = CALL("all", recv(p.client, buf, 6, MSG_PEEK | MSG_WAITALL));
    say_bytes("bytes", buf, n);
    MUST(pthread_join(one, NULL));
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    CALL("rest", recv(p.client, buf, 100, MSG_PEEK | MSG_WAITALL));
    CALL("end", recv(p.client, buf, 100, MSG_PEEK));
    CALL("read", recv(p.client, buf, 100, MSG_WAITALL));
}

// SO_PEEK_OFF that was set before connect, and on a listener.
CASE(peek_offset_before) {
    int l = listening(), c = tcp();
    MUST(set_int(c, SOL_SOCKET, SO_PEEK_OFF, 2));
    MUST(set_int(l, SOL_SOCKET, SO_PEEK_OFF, 1));
    MUST(connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    MUST(write(c, "abcdef", 6));
    MUST(write(s, "abcdef", 6));
    wait_unread(c, 6);
    wait_unread(s, 6);
    peek("client", c, 2, MSG_PEEK);
    peek("server", s, 2, MSG_PEEK);
}

// A peek with SO_PEEK_OFF stops at urgent data as a read does.
CASE(peek_offset_at_urgent_data) {
    struct pair p = pair();
    MUST(set_int(p.client, SOL_SOCKET, SO_PEEK_OFF, 0));
    MUST(write(p.server, "abc", 3));
    MUST(send(p.server, "!", 1, MSG_OOB));
    MUST(write(p.server, "def", 3));
    wait_unread(p.client, 3);
    wait_events(p.client, POLLPRI);
    rest(50);
    peek("before", p.client, 2, MSG_PEEK);
    peek("to_the_mark", p.client, 10, MSG_PEEK);
}

// IP_LOCAL_PORT_RANGE: a connect without bind takes its port from there.
CASE(port_range) {
    enum { FROM = 45100, TO = 45139 };
    int l = tcp(), c = tcp();
    MUST(set_int(l, IPPROTO_IP, 51, (int)((unsigned)TO << 16 | FROM)));
    MUST(bind(l, (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET}, sizeof(struct sockaddr_in)));
    MUST(listen(l, 5));
    CALL("set", set_int(c, IPPROTO_IP, 51, (int)((unsigned)TO << 16 | FROM)));
    CALL("get", get_int(c, IPPROTO_IP, 51));
    MUST(connect_to(c, l));
    for (int i = 0; i < 2; i++) {
        int port = port_of(i ? c : l);
        say(i ? "client" : "listener", "%s", FROM <= port && port <= TO ? "within" : "outside");
    }
}

static void foreign(const char *key, bool six, int name) {
    int l = six ? tcp6() : tcp();
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc000024d)};
    struct sockaddr_in6 other = {.sin6_family = AF_INET6};
    inet_pton(AF_INET6, "2001:db8::77", &other.sin6_addr);
    if (name != 0) CALL("set", set_int(l, six ? IPPROTO_IPV6 : IPPROTO_IP, name, 1));
    if (CALL(key, six ? bind(l, (void *)&other, sizeof other) : bind(l, (void *)&four, sizeof four)) < 0) return;
    CALL("listen", listen(l, 5));
    CALL("accepting", get_int(l, SOL_SOCKET, SO_ACCEPTCONN));
    CALL("option", get_int(l, six ? IPPROTO_IPV6 : IPPROTO_IP, name));
    nonblocking(l, true);
    CALL("accept", accept(l, NULL, NULL));
}

// A listener on an address that this host lacks needs IP_FREEBIND or IP_TRANSPARENT.
CASE(foreign_addresses) {
    for (int six = 0; six < 2; six++) {
        foreign("plain", six, 0);
        foreign("freebind", six, six ? IPV6_FREEBIND : IP_FREEBIND);
        foreign("transparent", six, six ? IPV6_TRANSPARENT : IP_TRANSPARENT);
    }
}

// IP_TRANSPARENT on both ends: connections within the host are as without.
CASE(transparent_within_the_host) {
    int l = bound(0), c = tcp();
    CALL("listener", set_int(l, IPPROTO_IP, IP_TRANSPARENT, 1));
    MUST(listen(l, 5));
    CALL("client", set_int(c, IPPROTO_IP, IP_TRANSPARENT, 1));
    if (CALL("connect", connect_to(c, l)) < 0) return;
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("of_client", get_int(c, IPPROTO_IP, IP_TRANSPARENT));
    CALL("accepted", get_int(s, IPPROTO_IP, IP_TRANSPARENT));
    CALL("write", write(c, "abc", 3));
    CALL("read", recv(s, buf, 3, MSG_WAITALL));
    int d = tcp();
    CALL("connect_without", connect_to(d, l));
}

// SO_BINDTODEVICE and TCP_MD5SIG that were set before connect hold for the connection.
CASE(device_and_key) {
    int l = bound(0), c = tcp(), other = tcp();
    struct tcp_md5sig key = {.tcpm_keylen = 3, .tcpm_key = "abc"};
    struct sockaddr_in a = loopback(0);
    memcpy(&key.tcpm_addr, &a, sizeof a);
    CALL("key", setsockopt(l, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key));
    MUST(listen(l, 5));
    CALL("device", setsockopt(c, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    CALL("with_device", get_int(c, SOL_SOCKET, SO_BINDTOIFINDEX));
    MUST(setsockopt(c, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key));
    CALL("same_key", connect_to(c, l));
    CALL("is_bound", get_int(c, SOL_SOCKET, SO_BINDTOIFINDEX));
    MUST(setsockopt(other, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    MUST(nonblocking(other, true));
    connect_to(other, l);
    rest(100);
    say_events("without_key", events_of(other));
}

// Prints an option's bytes, with room for so many.
static void ask_bytes(const char *key, int fd, int level, int name, socklen_t len) {
    unsigned char value[100];
    memset(value, 0x55, sizeof value);
    CALL(key, getsockopt(fd, level, name, value, &len));
    char text[201] = "";
    for (socklen_t i = 0; i < len && i < sizeof value; i++) sprintf(text + 2 * i, "%02x", value[i]);
    say("len", "%d value=%s", (int)len, text);
}

// Options that can only be read, in each state.
CASE(only_read) {
    struct pair p = pair(), six = pair6();
    int fds[] = {tcp(), p.client, p.server, p.listener, six.client, reset_by_peer()};
    for (int i = 0; i < 6; i++) {
        CALL("mtu", get_int(fds[i], IPPROTO_IP, IP_MTU));
        CALL("mtu_six", get_int(fds[i], IPPROTO_IPV6, IPV6_MTU));
        ask_bytes("credentials", fds[i], SOL_SOCKET, SO_PEERCRED, sizeof(struct ucred));
        ask_bytes("cut", fds[i], SOL_SOCKET, SO_PEERCRED, 6);
        CALL("groups", get_int(fds[i], SOL_SOCKET, SO_PEERGROUPS));
        CALL("reno", setsockopt(fds[i], IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
        ask_bytes("congestion", fds[i], IPPROTO_TCP, TCP_CC_INFO, 20);
        ask_bytes("saved_syn", fds[i], IPPROTO_TCP, TCP_SAVED_SYN, 20);
        ask_bytes("options", fds[i], IPPROTO_IP, IP_OPTIONS, 40);
        ask_bytes("negative", fds[i], IPPROTO_TCP, TCP_CC_INFO, (socklen_t)-1);
        CALL("set_ttl", set_int(fds[i], IPPROTO_IP, IP_MULTICAST_TTL, 1));
        // That of an accepted socket is what its SYN had.
        if (fds[i] != p.server) CALL("ttl", get_int(fds[i], IPPROTO_IP, IP_MULTICAST_TTL));
        CALL("hops", get_int(fds[i], IPPROTO_IPV6, IPV6_MULTICAST_HOPS));
        for (int value = 0; value < 3; value++) {
            CALL("loop", get_int(fds[i], IPPROTO_IP, IP_MULTICAST_LOOP));
            CALL("set_loop", set_int(fds[i], IPPROTO_IP, IP_MULTICAST_LOOP, value));
            CALL("loop_six", get_int(fds[i], IPPROTO_IPV6, IPV6_MULTICAST_LOOP));
            CALL("set_loop_six", set_int(fds[i], IPPROTO_IPV6, IPV6_MULTICAST_LOOP, value));
        }
    }
}

// IP_MULTICAST_LOOP that was switched off before connect is off afterwards.
CASE(multicast_loop_before) {
    int l = listening(), c = tcp();
    MUST(set_int(c, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    MUST(connect_to(c, l));
    CALL("loop", get_int(c, IPPROTO_IP, IP_MULTICAST_LOOP));
}

// SO_COOKIE tells sockets apart. SO_MEMINFO has the buffers and what is in them.
CASE(cookie_and_memory) {
    struct pair p = pair();
    unsigned long long cookies[3] = {0};
    int fds[] = {p.client, p.server, dup(p.client)};
    socklen_t len = sizeof *cookies;
    for (int i = 0; i < 3; i++) CALL("cookie", getsockopt(fds[i], SOL_SOCKET, SO_COOKIE, &cookies[i], &len));
    say("len", "%d same=%d different=%d", (int)len, cookies[0] == cookies[2], cookies[0] && cookies[0] != cookies[1]);
    len = 4;
    CALL("short", getsockopt(p.client, SOL_SOCKET, SO_COOKIE, cookies, &len));
    // All sockets of a thread are of its network namespace.
    unsigned long long namespaces[3] = {0};
    int of[] = {p.client, p.listener, tcp()};
    len = sizeof *namespaces;
    for (int i = 0; i < 3; i++) CALL("namespace", getsockopt(of[i], SOL_SOCKET, SO_NETNS_COOKIE, &namespaces[i], &len));
    say("same", "%d %d", namespaces[0] == namespaces[2], namespaces[1] == namespaces[2]);
    for (len = 4; len <= 16; len *= 4)
        CALL("length", getsockopt(p.client, SOL_SOCKET, SO_NETNS_COOKIE, (char[16]){0}, &len));
    unsigned memory[12] = {0};
    len = sizeof memory;
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    CALL("memory", getsockopt(p.client, SOL_SOCKET, SO_MEMINFO, memory, &len));
    say("words", "%d unread=%d receive=%d send=%d queued=%u", (int)len / 4, memory[0] >= 3,
        (int)memory[1] == get_int(p.client, SOL_SOCKET, SO_RCVBUF),
        (int)memory[3] == get_int(p.client, SOL_SOCKET, SO_SNDBUF), memory[5]);
    len = 8;
    CALL("cut", getsockopt(p.client, SOL_SOCKET, SO_MEMINFO, memory, &len));
    say("cut_len", "%d", (int)len);
}

// Requests about interfaces (SIOCGIF*) on sockets of both families.
CASE(interfaces) {
    struct pair p = pair(), six = pair6();
    int fds[] = {tcp(), p.client, p.listener, six.client};
    for (int i = 0; i < 4; i++) {
        struct ifreq one = {.ifr_name = "lo"};
        CALL("index", ioctl(fds[i], SIOCGIFINDEX, &one));
        CALL("name", ioctl(fds[i], SIOCGIFNAME, &one));
        say("is", "%s", one.ifr_name);
        CALL("flags", ioctl(fds[i], SIOCGIFFLAGS, &one));
        CALL("mtu", ioctl(fds[i], SIOCGIFMTU, &one));
        say("mtu", "%d", one.ifr_mtu);
        CALL("address", ioctl(fds[i], SIOCGIFADDR, &one));
        say("family", "%d", one.ifr_addr.sa_family);
        CALL("mask", ioctl(fds[i], SIOCGIFNETMASK, &one));
        struct ifreq all[50];
        struct ifconf list = {.ifc_len = sizeof all, .ifc_req = all};
        CALL("list", ioctl(fds[i], SIOCGIFCONF, &list));
        say("bytes", "%d", list.ifc_len);
        struct ifreq none = {.ifr_name = "nosuch"};
        CALL("none", ioctl(fds[i], SIOCGIFADDR, &none));
        CALL("nowhere", ioctl(fds[i], SIOCGIFADDR, NULL));
    }
}
