// Socket options whose effect is more than a number: what they add to a receive, forbid, or tell.
#include "conformance.h"
#define THEME "options"

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

// SO_ZEROCOPY and TCP_SAVE_SYN on sockets in all states. MSG_ZEROCOPY without SO_ZEROCOPY copies.
CASE(refused) {
    struct pair p = pair();
    int fds[] = {tcp(), p.client, p.listener};
    for (int i = 0; i < 3; i++) {
        CALL("set_zerocopy", set_int(fds[i], SOL_SOCKET, SO_ZEROCOPY, 1));
        CALL("zerocopy", get_int(fds[i], SOL_SOCKET, SO_ZEROCOPY));
        CALL("set_save_syn", set_int(fds[i], IPPROTO_TCP, TCP_SAVE_SYN, 1));
        CALL("save_syn", get_int(fds[i], IPPROTO_TCP, TCP_SAVE_SYN));
    }
    CALL("send", send(p.server, "abc", 3, MSG_ZEROCOPY));
    CALL("received", recv(p.client, buf, 3, MSG_WAITALL));
    say_events("no_completion", events_of(p.server));
}
