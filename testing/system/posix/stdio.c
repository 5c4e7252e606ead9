// libc's streams on sockets: stdin, stdout and stderr after dup2 and over exec.
#include "conformance.h"
#define THEME "stdio"

// Runs `work` in a child, and prints what arrives at the peer of its socket.
static void child_says(const char *key, void (*work)(struct pair *)) {
    struct pair p = pair();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(p.server);
        work(&p);
        exit(0);
    }
    MUST(close(p.client));
    static char got[400];
    long n = 0, more;
    while (n < (long)sizeof got && (more = recv(p.server, got + n, sizeof got - (size_t)n, 0)) > 0) n += more;
    say_bytes(key, got, n);
    int status = 0;
    waitpid(pid, &status, 0);
    say("status", "%d", status);
}

static void prints(struct pair *p) {
    MUST(dup2(p->client, 1));
    printf("%d ", 1);
    puts("two");
    putchar('3');
    fputs(" four", stdout);
    fwrite(" five", 1, 5, stdout);
    putc_unlocked('!', stdout);
}
// Every way to print, with a socket in stdout's place.
CASE(stdout_over_dup2) { child_says("got", prints); }

static void prints_errors(struct pair *p) {
    MUST(dup2(p->client, 2));
    fprintf(stderr, "one ");
    errno = ENOENT;
    perror("two");
    write(2, "raw", 3);
}
// Every way to print errors, with a socket in stderr's place.
CASE(stderr_over_dup2) { child_says("got", prints_errors); }

static void prints_before(struct pair *p) {
    printf("before ");
    MUST(dup2(p->client, 1));
    printf("after");
}
// Bytes in stdout's buffer at the time of dup2 go to the new descriptor.
CASE(stdout_pending_at_dup2) { child_says("got", prints_before); }

static void prints_and_goes_back(struct pair *p) {
    int saved = (int)MUST(dup(1)), null = (int)MUST(open("/dev/null", O_WRONLY));
    MUST(dup2(p->client, 1));
    printf("to the socket ");
    fflush(stdout);
    MUST(dup2(null, 1));
    printf("nowhere ");
    fflush(stdout);
    MUST(dup2(p->client, 1));
    printf("again ");
    fflush(stdout);
    MUST(dup2(saved, 1));
    dprintf(p->client, "%d", fileno(stdout));
}
// Stdout is moved to a socket, to a file, to the socket again, and back.
CASE(stdout_there_and_back) { child_says("got", prints_and_goes_back); }

static void prints_after_close(struct pair *p) {
    close(1);
    MUST(dup(p->client));
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("one ");
    write(1, "two ", 4);
    printf("three");
}
// A socket gets stdout's number by close and dup, as shells do it.
CASE(stdout_by_close_and_dup) { child_says("got", prints_after_close); }

static void closes(struct pair *p) {
    MUST(dup2(p->client, 1));
    printf("flushed");
    dprintf(p->client, "[%d]", fclose(stdout));
}
// Fclose of stdout sends its buffer and closes the descriptor.
CASE(stdout_closed) { child_says("got", closes); }

static void executes(struct pair *p) {
    MUST(dup2(p->client, 1));
    execl("/bin/echo", "echo", "hello", NULL);
}
// A program that is executed prints to a socket.
CASE(stdout_over_exec) { child_says("got", executes); }

// Every way to read, with a socket in stdin's place.
CASE(stdin_over_dup2) {
    struct pair p = pair();
    MUST(write(p.server, "a line\n42 rest", 14));
    MUST(shutdown(p.server, SHUT_WR));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char line[100] = "";
        int number = 0;
        MUST(dup2(p.client, 0));
        bool got = fgets(line, sizeof line, stdin);
        int fields = scanf("%d", &number), c = getchar();
        dprintf(p.client, "%d%s%d %d %c", got, line, fields, number, c);
        exit(0);
    }
    char got[100];
    waitpid(pid, NULL, 0);
    long n = recv(p.server, got, sizeof got, 0);
    say_bytes("got", got, n);
}
