/*
 * Sends lines to an echo server and prints what comes back; then asks it to end.
 *
 *   cc echo_client.c $(pkg-config --cflags --libs m3ipc) -o echo_client
 *   dvs run CONTAINER -- ./echo_client ENDPOINT TEXT...
 */
#include <m3ipc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *what, int result)
{
    if (result < 0) {
        fprintf(stderr, "echo_client: %s: %s\n", what, m3_strerror(result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: echo_client ENDPOINT TEXT...\n");
        return 2;
    }
    int server = atoi(argv[1]);
    m3_port *port;
    check("cannot bind", m3_connect(NULL, M3_ANY, &port));
    check("no server", m3_wait4bind(port, server, 10000));
    for (int i = 2; i <= argc; i++) {
        m3_message message;
        const void *data;
        const char *text = i < argc ? argv[i] : "";
        memset(&message, 0, sizeof message);
        message.type = i < argc ? i : 0;
        check("no answer", m3_sendrec_data(port, server, &message, text, strlen(text), 10000));
        int bytes = m3_data(port, &data);
        check("cannot read the data", bytes);
        if (bytes > 0)
            printf("%.*s\n", bytes, (const char *)data);
    }
    check("cannot unbind", m3_close(port));
    return 0;
}
