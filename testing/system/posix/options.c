// Socket options before and after connect and listen: their ranges, their errors, and their effects.
#include "conformance.h"
#define THEME "options"

static char buf[1000];

struct option {
    const char *name;
    int level, number;
};
static const struct option plain[] = {
    {"nodelay", IPPROTO_TCP, TCP_NODELAY},         {"cork", IPPROTO_TCP, TCP_CORK},
    {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE},       {"keepintvl", IPPROTO_TCP, TCP_KEEPINTVL},
    {"keepcnt", IPPROTO_TCP, TCP_KEEPCNT},         {"syncnt", IPPROTO_TCP, TCP_SYNCNT},
    {"linger2", IPPROTO_TCP, TCP_LINGER2},         {"defer", IPPROTO_TCP, TCP_DEFER_ACCEPT},
    {"user_timeout", IPPROTO_TCP, TCP_USER_TIMEOUT}, {"notsent_lowat", IPPROTO_TCP, TCP_NOTSENT_LOWAT},
    {"thin", IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS}, {"thin_dupack", IPPROTO_TCP, TCP_THIN_DUPACK},
    {"inq", IPPROTO_TCP, TCP_INQ},                 {"tx_delay", IPPROTO_TCP, TCP_TX_DELAY},
    {"fastopen_connect", IPPROTO_TCP, TCP_FASTOPEN_CONNECT}, {"nosuch", IPPROTO_TCP, 999},
    {"reuseaddr", SOL_SOCKET, SO_REUSEADDR},       {"reuseport", SOL_SOCKET, SO_REUSEPORT},
    {"keepalive", SOL_SOCKET, SO_KEEPALIVE},       {"oobinline", SOL_SOCKET, SO_OOBINLINE},
    {"sndlowat", SOL_SOCKET, SO_SNDLOWAT},
    {"priority", SOL_SOCKET, SO_PRIORITY},         {"broadcast", SOL_SOCKET, SO_BROADCAST},
    {"dontroute", SOL_SOCKET, SO_DONTROUTE},       {"timestamp", SOL_SOCKET, SO_TIMESTAMP},
    {"debug", SOL_SOCKET, SO_DEBUG},               {"busy_poll", SOL_SOCKET, SO_BUSY_POLL},
    {"mark", SOL_SOCKET, SO_MARK},
    {"passcred", SOL_SOCKET, SO_PASSCRED},         {"rxq_ovfl", SOL_SOCKET, SO_RXQ_OVFL},
    {"peek_off", SOL_SOCKET, SO_PEEK_OFF},         {"nosuch_so", SOL_SOCKET, 999},
    {"type", SOL_SOCKET, SO_TYPE},                 {"error", SOL_SOCKET, SO_ERROR},
    {"acceptconn", SOL_SOCKET, SO_ACCEPTCONN},     {"protocol", SOL_SOCKET, SO_PROTOCOL},
    {"domain", SOL_SOCKET, SO_DOMAIN},             {"tos", IPPROTO_IP, IP_TOS},
    {"ttl", IPPROTO_IP, IP_TTL},                   {"mtu_discover", IPPROTO_IP, IP_MTU_DISCOVER},
    {"recverr", IPPROTO_IP, IP_RECVERR},           {"recvtos", IPPROTO_IP, IP_RECVTOS},
    {"recvttl", IPPROTO_IP, IP_RECVTTL},           {"pktinfo", IPPROTO_IP, IP_PKTINFO},
    {"freebind", IPPROTO_IP, IP_FREEBIND},         {"transparent", IPPROTO_IP, IP_TRANSPARENT},
    {"minttl", IPPROTO_IP, IP_MINTTL},             {"no_port", IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
    {"nosuch_ip", IPPROTO_IP, 999},                {"level", 12345, 1},
};
enum { PLAIN = sizeof plain / sizeof *plain };

// Prints the values of all options. `set_all` sets each to one value first.
static void ask_all(int fd) {
    for (int i = 0; i < PLAIN; i++) CALL(plain[i].name, get_int(fd, plain[i].level, plain[i].number));
}
static void set_all(int fd, int value) {
    for (int i = 0; i < PLAIN; i++) {
        char key[100];
        snprintf(key, sizeof key, "set_%s", plain[i].name);
        CALL(key, set_int(fd, plain[i].level, plain[i].number, value));
    }
    ask_all(fd);
}

// The values of all options on a fresh socket.
CASE(fresh) { ask_all(tcp()); }
// All options set to 1 on a fresh socket.
CASE(fresh_set_one) { set_all(tcp(), 1); }
// The values of all options on a listener.
CASE(listening) { ask_all(listening()); }
// All options set to 1 on a listener.
CASE(listening_set_one) { set_all(listening(), 1); }
// The values of all options on a connected socket.
CASE(connected) { ask_all(pair().client); }
// The values of all options on an accepted socket.
CASE(accepted) { ask_all(pair().server); }
// All options set to 1 on a connected socket.
CASE(connected_set_one) { set_all(pair().client, 1); }
// All options set to 0 on a connected socket.
CASE(connected_set_zero) { set_all(pair().client, 0); }
// All options set to a large number on a connected socket.
CASE(connected_set_much) { set_all(pair().client, 1000000); }
// All options set to -1 on a connected socket.
CASE(connected_set_negative) { set_all(pair().client, -1); }
// All options set to 1 on an accepted socket.
CASE(accepted_set_one) { set_all(pair().server, 1); }
// All options set to 1 on a socket that was reset.
CASE(closed_set_one) { set_all(reset_by_peer(), 1); }

// An accepted socket has its listener's options, as far as Linux hands them on.
CASE(inherited) {
    int l = listening();
    static const struct { int level, name, value; } some[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1}, {IPPROTO_TCP, TCP_CORK, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 33},
        {IPPROTO_TCP, TCP_KEEPINTVL, 7}, {IPPROTO_TCP, TCP_KEEPCNT, 4}, {SOL_SOCKET, SO_KEEPALIVE, 1},
        {SOL_SOCKET, SO_OOBINLINE, 1}, {SOL_SOCKET, SO_RCVLOWAT, 5}, {SOL_SOCKET, SO_PRIORITY, 3},
        {IPPROTO_IP, IP_TOS, 0x10}, {IPPROTO_IP, IP_TTL, 44}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 777},
        {SOL_SOCKET, SO_REUSEADDR, 1}, {IPPROTO_TCP, TCP_LINGER2, 9}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 999},
        {SOL_SOCKET, SO_BROADCAST, 1}, {IPPROTO_TCP, TCP_QUICKACK, 0}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) set_int(l, some[i].level, some[i].name, some[i].value);
    int c = tcp();
    MUST(connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        char key[30];
        snprintf(key, sizeof key, "%d/%d", some[i].level, some[i].name);
        CALL(key, get_int(s, some[i].level, some[i].name));
    }
}

// Options that were set before connect have the same values after it.
CASE(carried_over_connect) {
    int l = listening(), c = tcp();
    for (int i = 0; i < PLAIN; i++)
        if (plain[i].number != TCP_CORK || plain[i].level != IPPROTO_TCP) set_int(c, plain[i].level, plain[i].number, 1);
    set_int(c, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0);
    set_int(c, IPPROTO_TCP, TCP_TX_DELAY, 0);
    MUST(connect_to(c, l));
    ask_all(c);
}

// Option values that are too short, too long, or of negative length; one byte for options of IPv4.
CASE(lengths) {
    struct pair p = pair();
    int value = 1;
    socklen_t len;
    CALL("set_short", setsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, &value, 2));
    CALL("set_zero", setsockopt(p.client, SOL_SOCKET, SO_KEEPALIVE, &value, 0));
    CALL("set_long", setsockopt(p.client, SOL_SOCKET, SO_KEEPALIVE, &value, 100));
    CALL("set_negative", setsockopt(p.client, SOL_SOCKET, SO_KEEPALIVE, &value, (socklen_t)-1));
    CALL("tos_byte", setsockopt(p.client, IPPROTO_IP, IP_TOS, "\20", 1));
    CALL("tos", get_int(p.client, IPPROTO_IP, IP_TOS));
    value = 0x11223344, len = 1;
    CALL("get_byte", getsockopt(p.client, SOL_SOCKET, SO_TYPE, &value, &len));
    say("value", "%x len=%d", (unsigned)value, (int)len);
    value = 0x11223344, len = 1;
    CALL("get_tos_byte", getsockopt(p.client, IPPROTO_IP, IP_TOS, &value, &len));
    say("tos_value", "%x tos_len=%d", (unsigned)value, (int)len);
    len = 0;
    CALL("get_zero", getsockopt(p.client, SOL_SOCKET, SO_TYPE, &value, &len));
    say("len0", "%d", (int)len);
    len = (socklen_t)-1;
    CALL("get_negative", getsockopt(p.client, SOL_SOCKET, SO_TYPE, &value, &len));
    CALL("get_negative_tcp", getsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, &value, &len));
    len = 100;
    CALL("get_long", getsockopt(p.client, IPPROTO_TCP, TCP_NODELAY, buf, &len));
    say("len100", "%d", (int)len);
    CALL("set_type", set_int(p.client, SOL_SOCKET, SO_TYPE, 1));
    CALL("set_error", set_int(p.client, SOL_SOCKET, SO_ERROR, 1));
    CALL("set_acceptconn", set_int(p.client, SOL_SOCKET, SO_ACCEPTCONN, 1));
}

// SO_RCVTIMEO and SO_SNDTIMEO: values that are accepted, and how they read.
CASE(times) {
    struct pair p = pair();
    struct timeval t = {1, 500000};
    socklen_t len = sizeof t;
    CALL("set", setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    t = (struct timeval){9, 9};
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    say("time", "%ld.%06ld len=%d", t.tv_sec, t.tv_usec, (int)len);
    t = (struct timeval){0, 1000000};
    CALL("too_many_us", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    t = (struct timeval){0, -1};
    CALL("negative_us", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    t = (struct timeval){-1, 0};
    CALL("negative", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    CALL("get_negative", getsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, &len));
    say("none", "%ld.%06ld", t.tv_sec, t.tv_usec);
    CALL("short", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, 8));
    t = (struct timeval){0, 1};
    CALL("tiny", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    t = (struct timeval){1L << 40, 0};
    CALL("huge", setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    len = 4;
    CALL("cut", getsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
    say("cutlen", "%d", (int)len);
}

// SO_RCVTIMEO ends recv, readv and accept with EAGAIN, and is inherited from a listener.
CASE(receive_timeout) {
    struct pair p = pair();
    struct timeval t = {0, 60000};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    long start = now_ms();
    CALL("recv", recv(p.client, buf, 1, 0));
    say("waited", "%s", now_ms() - start >= 50 ? "yes" : "no");
    CALL("peek", recv(p.client, buf, 1, MSG_PEEK));
    CALL("readv", readv(p.client, &(struct iovec){buf, 1}, 1));
    MUST(setsockopt(p.listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    CALL("accept", accept(p.listener, NULL, NULL));
    int inherited = tcp();
    MUST(connect_to(inherited, p.listener));
    int s = (int)MUST(accept(p.listener, NULL, NULL));
    CALL("inherited", recv(s, buf, 1, 0));
}

// SO_SNDTIMEO ends a send on a full connection.
CASE(send_timeout) {
    struct pair p = pair();
    struct timeval t = {0, 60000};
    MUST(setsockopt(p.client, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    fill(p.client);
    static char much[100000];
    ssize_t n = 1;
    for (int i = 0; i < 200 && n > 0; i++) n = send(p.client, much, sizeof much, 0);
    say_result("send", n);
}

// SO_RCVBUF and SO_SNDBUF as they read: doubled, with a least value.
CASE(buffers) {
    struct pair p = pair();
    CALL("set_rcv", set_int(p.client, SOL_SOCKET, SO_RCVBUF, 100000));
    CALL("rcv", get_int(p.client, SOL_SOCKET, SO_RCVBUF));
    CALL("set_snd", set_int(p.client, SOL_SOCKET, SO_SNDBUF, 50000));
    CALL("snd", get_int(p.client, SOL_SOCKET, SO_SNDBUF));
    CALL("set_small", set_int(p.client, SOL_SOCKET, SO_RCVBUF, 1));
    CALL("small", get_int(p.client, SOL_SOCKET, SO_RCVBUF));
    CALL("set_small_snd", set_int(p.client, SOL_SOCKET, SO_SNDBUF, 1));
    CALL("small_snd", get_int(p.client, SOL_SOCKET, SO_SNDBUF));
    int c = tcp();
    CALL("before", set_int(c, SOL_SOCKET, SO_RCVBUF, 70000));
    MUST(connect_to(c, p.listener));
    CALL("after", get_int(c, SOL_SOCKET, SO_RCVBUF));
}

// TCP_WINDOW_CLAMP: values that are accepted, and how they read.
CASE(window_clamp) {
    struct pair p = pair();
    CALL("set", set_int(p.client, IPPROTO_TCP, TCP_WINDOW_CLAMP, 5000));
    CALL("get", get_int(p.client, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    CALL("small", set_int(p.client, IPPROTO_TCP, TCP_WINDOW_CLAMP, 1));
    CALL("is", get_int(p.client, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    CALL("zero", set_int(p.client, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0));
}

// A negative buffer size counts as a huge one.
CASE(buffers_negative_is_the_limit) {
    struct pair p = pair();
    CALL("set", set_int(p.client, SOL_SOCKET, SO_RCVBUF, -1));
    CALL("set_snd", set_int(p.client, SOL_SOCKET, SO_SNDBUF, -1));
}

// TCP_CONGESTION: names that are set, read, cut, and unknown.
CASE(congestion) {
    struct pair p = pair();
    char name[17] = "";
    socklen_t len = 16;
    CALL("reno", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    CALL("get", getsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("name", "%s len=%d", name, (int)len);
    CALL("cubic0", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, "cubic", 6));
    len = 3;
    memset(name, 0, sizeof name);
    CALL("cut", getsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("cutname", "%s cutlen=%d", name, (int)len);
    CALL("nosuch", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, "nosuch", 6));
    CALL("empty", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, "", 1));
    CALL("zero", setsockopt(p.client, IPPROTO_TCP, TCP_CONGESTION, "reno", 0));
    int c = tcp();
    CALL("before", setsockopt(c, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    MUST(connect_to(c, p.listener));
    len = 16;
    memset(name, 0, sizeof name);
    CALL("after", getsockopt(c, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("aftername", "%s", name);
}

// An accepted socket has its listener's TCP_CONGESTION.
CASE(congestion_inherited) {
    int l = listening();
    MUST(setsockopt(l, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    int c = tcp();
    MUST(connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    char name[17] = "";
    socklen_t len = 16;
    CALL("get", getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("name", "%s", name);
}

// TCP_QUICKACK as it reads and is set.
CASE(quickack) {
    struct pair p = pair();
    CALL("get", get_int(p.client, IPPROTO_TCP, TCP_QUICKACK));
    CALL("off", set_int(p.client, IPPROTO_TCP, TCP_QUICKACK, 0));
    CALL("is_off", get_int(p.client, IPPROTO_TCP, TCP_QUICKACK));
    CALL("on", set_int(p.client, IPPROTO_TCP, TCP_QUICKACK, 1));
    CALL("is_on", get_int(p.client, IPPROTO_TCP, TCP_QUICKACK));
}

// TCP_MAXSEG before and after connect, and its range.
CASE(maxseg) {
    int l = listening(), c = tcp();
    CALL("fresh", get_int(c, IPPROTO_TCP, TCP_MAXSEG));
    CALL("small", set_int(c, IPPROTO_TCP, TCP_MAXSEG, 10));
    CALL("much", set_int(c, IPPROTO_TCP, TCP_MAXSEG, 100000));
    CALL("set", set_int(c, IPPROTO_TCP, TCP_MAXSEG, 1000));
    CALL("get", get_int(c, IPPROTO_TCP, TCP_MAXSEG));
    MUST(connect_to(c, l));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("client", get_int(c, IPPROTO_TCP, TCP_MAXSEG));
    CALL("server", get_int(s, IPPROTO_TCP, TCP_MAXSEG));
}

// TCP_INFO in each state of a connection, and cut to the room that is given.
CASE(info) {
    struct pair p = pair();
    struct tcp_info i;
    socklen_t len = sizeof i;
    memset(&i, 0, sizeof i);
    CALL("get", getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("state", "%d len=%s ts=%d", i.tcpi_state, len == sizeof i ? "all" : "cut", i.tcpi_options & 1);
    int l = listening();
    CALL("listener", getsockopt(l, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("lstate", "%d", i.tcpi_state);
    int fd = tcp();
    CALL("fresh", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("fstate", "%d", i.tcpi_state);
    len = 1;
    CALL("cut", getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("cutlen", "%d", (int)len);
    MUST(shutdown(p.server, SHUT_WR));
    wait_events(p.client, POLLRDHUP);
    len = sizeof i;
    MUST(getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("after_fin", "%d", i.tcpi_state);
    for (int n = 0; n < 1000 && i.tcpi_state != 5; n++) rest(1), getsockopt(p.server, IPPROTO_TCP, TCP_INFO, &i, &len);
    say("sender", "%d", i.tcpi_state);
    int r = reset_by_peer();
    MUST(getsockopt(r, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("reset", "%d", i.tcpi_state);
    CALL("set", setsockopt(p.client, IPPROTO_TCP, TCP_INFO, &i, sizeof i));
}

// The counts of bytes and segments in TCP_INFO.
CASE(info_counts) {
    struct pair p = pair();
    MUST(write(p.client, buf, 1000));
    MUST(recv(p.server, buf, 1000, MSG_WAITALL));
    wait_sent(p.client);
    struct tcp_info i;
    socklen_t len = sizeof i;
    MUST(getsockopt(p.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("acked", "%llu retrans=%u unacked=%u notsent=%u", (unsigned long long)i.tcpi_bytes_acked, i.tcpi_total_retrans,
        i.tcpi_unacked, i.tcpi_notsent_bytes);
    say("sent", "%llu segs=%u", (unsigned long long)i.tcpi_bytes_sent, i.tcpi_data_segs_out);
    MUST(getsockopt(p.server, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("received", "%llu segs_in=%u", (unsigned long long)i.tcpi_bytes_received, i.tcpi_data_segs_in);
}

// TCP_DEFER_ACCEPT: a connection can be accepted once it has data.
CASE(defer_accept) {
    int l = listening(), c = tcp();
    CALL("set", set_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5));
    MUST(connect_to(c, l));
    rest(50);
    say_events("deferred", events_of(l));
    MUST(write(c, "x", 1));
    say_events("data", wait_events(l, POLLIN));
}

// TCP_FASTOPEN on a listener, and a connect with data (MSG_FASTOPEN).
CASE(fastopen_listener) {
    int l = bound(0);
    CALL("set", set_int(l, IPPROTO_TCP, TCP_FASTOPEN, 5));
    CALL("get", get_int(l, IPPROTO_TCP, TCP_FASTOPEN));
    MUST(listen(l, 5));
    CALL("get_after", get_int(l, IPPROTO_TCP, TCP_FASTOPEN));
    int c = tcp();
    struct sockaddr_in a = loopback(port_of(l));
    CALL("sendto", sendto(c, "abc", 3, MSG_FASTOPEN, (struct sockaddr *)&a, sizeof a));
    int s = (int)MUST(accept(l, NULL, NULL));
    CALL("read", recv(s, buf, 3, MSG_WAITALL));
}

// MSG_FASTOPEN on a connected socket, and without an address.
CASE(fastopen_connected) {
    struct pair p = pair();
    struct sockaddr_in a = loopback(port_of(p.listener));
    CALL("again", sendto(p.client, "abc", 3, MSG_FASTOPEN, (struct sockaddr *)&a, sizeof a));
    int c = tcp();
    CALL("no_address", send(c, "abc", 3, MSG_FASTOPEN));
}

// SO_RCVLOWAT: readable from so many bytes on.
CASE(rcvlowat) {
    struct pair p = pair();
    MUST(set_int(p.client, SOL_SOCKET, SO_RCVLOWAT, 5));
    MUST(write(p.server, "abc", 3));
    wait_unread(p.client, 3);
    say_events("three", events_of(p.client));
    CALL("dontwait", recv(p.client, buf, 10, MSG_DONTWAIT | MSG_PEEK));
    MUST(write(p.server, "de", 2));
    say_events("five", wait_events(p.client, POLLIN));
    CALL("read", recv(p.client, buf, 1, 0));
    say_events("four", events_of(p.client));
    CALL("negative", set_int(p.client, SOL_SOCKET, SO_RCVLOWAT, -1));
    MUST(set_int(p.client, SOL_SOCKET, SO_RCVLOWAT, 0));
    CALL("zero", get_int(p.client, SOL_SOCKET, SO_RCVLOWAT));
    say_events("any", events_of(p.client));
}

// SO_MAX_PACING_RATE in its 32-bit and 64-bit forms.
CASE(pacing) {
    struct pair p = pair();
    unsigned rate = 1000000;
    unsigned long wide = 0;
    socklen_t len = sizeof rate;
    CALL("set", setsockopt(p.client, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    rate = 0;
    CALL("get", getsockopt(p.client, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len));
    say("rate", "%u", rate);
    len = sizeof wide;
    CALL("get64", getsockopt(p.client, SOL_SOCKET, SO_MAX_PACING_RATE, &wide, &len));
    say("wide", "%lu len=%d", wide, (int)len);
}

// The owner of a socket for SIGIO (F_SETOWN), and O_ASYNC.
CASE(owner) {
    struct pair p = pair();
    CALL("get", fcntl(p.client, F_GETOWN));
    CALL("set", fcntl(p.client, F_SETOWN, getpid()));
    CALL("mine", fcntl(p.client, F_GETOWN) == getpid());
    CALL("async", fcntl(p.client, F_SETFL, O_ASYNC));
    CALL("is", fcntl(p.client, F_GETFL) & O_ASYNC);
}

// The flags of fcntl, and its commands that sockets refuse.
CASE(file_flags) {
    struct pair p = pair();
    say("flags", "%x", fcntl(p.client, F_GETFL));
    CALL("append", fcntl(p.client, F_SETFL, O_APPEND | O_NONBLOCK));
    say("then", "%x", fcntl(p.client, F_GETFL));
    CALL("fd", fcntl(p.client, F_SETFD, FD_CLOEXEC));
    CALL("getfd", fcntl(p.client, F_GETFD));
    CALL("unknown", fcntl(p.client, 999));
    CALL("getlk", fcntl(p.client, F_GETLK, &(struct flock){.l_type = F_RDLCK}));
    CALL("pipe_sz", fcntl(p.client, F_GETPIPE_SZ));
}

static void limit_negative(bool before) {
    struct timeval t = {.tv_sec = -1}, got = {9, 9};
    int l = listening(), c = tcp();
    if (before) CALL("set", setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    MUST(connect_to(c, l));
    if (!before) CALL("set", setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    socklen_t len = sizeof got;
    CALL("get", getsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
    say("time", "%ld,%ld", (long)got.tv_sec, (long)got.tv_usec);
    char byte;
    CALL("recv", recv(c, &byte, 1, 0));
    CALL("set_snd", setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    MUST(nonblocking(c, true));
    fill(c);
    MUST(nonblocking(c, false));
    CALL("send", send(c, &byte, 1, 0));
    t.tv_sec = 0;
    MUST(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){-5, 0}, sizeof t));
    MUST(accept(l, NULL, NULL));
    CALL("accept", accept(l, NULL, NULL));
}

// Negative time limits: no call waits.
CASE(receive_limit_negative) { limit_negative(false); }
// Negative time limits that were set before connect.
CASE(receive_limit_negative_before) { limit_negative(true); }
