/*
 * Answers every request with what came in it. See echo_client.c.
 *
 *   cc echo_server.c $(pkg-config --cflags --libs m3ipc) -o echo_server
 *   dvs run CONTAINER -- ./echo_server [ENDPOINT]
 */
#include <m3ipc.h>

#include <stdio.h>
#include <stdlib.h>

static void check(const char *what, int result)
{
    if (result < 0) {
        fprintf(stderr, "echo_server: %s: %s\n", what, m3_strerror(result));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int wanted = argc > 1 ? atoi(argv[1]) : M3_ANY;
    m3_port *port;
    check("cannot bind", m3_connect(NULL, wanted, &port));
    printf("endpoint %d\n", m3_endpoint(port));
    fflush(stdout);
    for (;;) {
        m3_message request;
        const void *data;
        check("cannot wait for requests", m3_rcvrqst(port, &request, M3_FOREVER));
        int bytes = m3_data(port, &data);
        check("cannot read the data", bytes);
        /* The data is copied before it is sent, so it may come from the port itself. */
        int result = m3_reply_data(port, request.source, &request, data, (size_t)bytes);
        if (result == M3_ENOTWAITING || result == M3_ESRCDIED || result == M3_EDSTDIED)
            continue; /* the caller gave up, or is gone */
        check("cannot reply", result);
        if (request.type == 0)
            break; /* asked to end */
    }
    check("cannot unbind", m3_close(port));
    return 0;
}
