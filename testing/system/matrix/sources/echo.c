// echo ADDRESS PORT COUNT: serves COUNT connections one after the other, then ends.
// echo - PORT COUNT: the same, with descriptor 3 as the listener (LISTEN_FDS).
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int failed(const char *what)
{
    perror(what);
    return 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    char buffer[4096];
    int listener = 3, one = 1;
    ssize_t n;
    if (argc != 4)
        return 2;
    at.sin_port = htons(atoi(argv[2]));
    if (strcmp(argv[1], "-")) {
        inet_pton(AF_INET, argv[1], &at.sin_addr);
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16))
            return failed("bind, listen");
    }
    puts("listening");
    fflush(stdout);
    for (int count = atoi(argv[3]); count > 0; count--) {
        int s = accept(listener, NULL, NULL);
        if (s < 0)
            return failed("accept");
        while ((n = read(s, buffer, sizeof buffer)) > 0)
            if (write(s, buffer, n) != n)
                return failed("write");
        if (n < 0)
            return failed("read");
        close(s);
    }
    puts("served");
    return 0;
}
