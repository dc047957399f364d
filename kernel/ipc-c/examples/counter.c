/*
 * A counter that hands itself over to another process, on another node if you like, while it is asked.
 *
 *   cc counter.c $(pkg-config --cflags --libs m3ipc) -o counter
 *   dvs run -d shop --node n1 -- /dc/counter                 begins; says its endpoint
 *   dvs run shop --node n3 -- /dc/counter ask ENDPOINT       the next number, and whose it is
 *   dvs run -d shop --node n2 -- /dc/counter after ENDPOINT  will stand by; says its pid, and where it takes the count
 *   dvs run shop -- /dc/counter move ENDPOINT NODE PID PLACE
 *
 * NODE is the number of n2, as "dvs node ls -o json" shows it.
 */
#define _DEFAULT_SOURCE
#include <m3ipc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ASK = 1, MOVE, COUNT };
#define A_WHILE 10000

static int check(const char *what, int result)
{
    if (result < 0) {
        fprintf(stderr, "counter: %s: %s\n", what, m3_strerror(result));
        exit(1);
    }
    return result;
}

static m3_message of_type(int type)
{
    m3_message message;
    memset(&message, 0, sizeof message);
    message.type = type;
    return message;
}

/* Hands the held endpoint over; the other side has the count, but may not stand by yet. */
static int commit(m3_port *port, int node, int pid)
{
    int result = M3_ENOENDPOINT;
    for (int tries = 0; result == M3_ENOENDPOINT && tries < 1000; tries++) {
        if (tries > 0)
            usleep(1000);
        result = m3_migration_commit(port, m3_endpoint(port), node, pid, A_WHILE);
    }
    return result;
}

/* Whether the counter is somebody else's afterwards. */
static int hand_over(m3_port *port, const m3_message *request, int64_t count)
{
    int node = request->payload.i32[0], pid = request->payload.i32[1], place = request->payload.i32[2];
    int own = m3_endpoint(port), result = m3_migration_start(port, own, A_WHILE);
    m3_message message = of_type(COUNT);
    message.payload.i64[0] = count; /* held, so it stays what it is */
    if (result == 0)
        result = m3_send(port, place, &message, A_WHILE);
    if (result == 0)
        result = commit(port, node, pid);
    if (result == 0)
        return 1;
    fprintf(stderr, "counter: cannot hand over to process %d of node %d: %s\n", pid, node, m3_strerror(result));
    m3_migration_rollback(port, own);
    return 0;
}

static void serve(m3_port *port, int64_t count)
{
    printf("endpoint %d, process %d, count %lld\n", m3_endpoint(port), (int)getpid(), (long long)count);
    fflush(stdout);
    for (;;) {
        m3_message request, reply = of_type(0);
        check("cannot wait for requests", m3_receive(port, M3_ANY, &request, M3_FOREVER));
        if (request.type == MOVE) {
            if (hand_over(port, &request, count))
                break;
            continue;
        }
        reply.payload.i64[0] = ++count;
        reply.payload.i64[1] = getpid();
        m3_reply(port, request.source, &reply); /* a caller that gave up is none of our business */
    }
    check("cannot close", m3_close(port));
}

/* A backup has an endpoint of its own, to which the count comes; with that it stands by. */
static void stand_by(int endpoint)
{
    m3_port *own, *port;
    m3_message message;
    check("cannot bind", m3_connect(NULL, M3_ANY, &own));
    printf("process %d takes the count at %d\n", (int)getpid(), m3_endpoint(own));
    fflush(stdout);
    check("no count", m3_receive(own, M3_ANY, &message, M3_FOREVER));
    check("not the counter", m3_stand_by(NULL, endpoint, A_WHILE, &port));
    check("cannot close", m3_close(own));
    serve(port, message.payload.i64[0]);
}

static void ask(int endpoint)
{
    m3_port *port;
    m3_message message = of_type(ASK);
    check("cannot bind", m3_connect(NULL, M3_ANY, &port));
    check("no counter", m3_wait4bind(port, endpoint, A_WHILE));
    check("no answer", m3_sendrec(port, endpoint, &message, A_WHILE));
    printf("%lld from process %d\n", (long long)message.payload.i64[0], (int)message.payload.i64[1]);
    check("cannot close", m3_close(port));
}

static void move(int endpoint, char **to)
{
    m3_port *port;
    m3_message message = of_type(MOVE);
    for (int i = 0; i < 3; i++)
        message.payload.i32[i] = atoi(to[i]);
    check("cannot bind", m3_connect(NULL, M3_ANY, &port));
    check("no counter", m3_wait4bind(port, endpoint, A_WHILE));
    check("not told", m3_send(port, endpoint, &message, A_WHILE));
    check("cannot close", m3_close(port));
}

int main(int argc, char **argv)
{
    m3_port *port;
    if (argc == 1) {
        check("cannot bind", m3_connect(NULL, M3_ANY, &port));
        serve(port, 0);
    } else if (argc == 3 && strcmp(argv[1], "after") == 0) {
        stand_by(atoi(argv[2]));
    } else if (argc == 3 && strcmp(argv[1], "ask") == 0) {
        ask(atoi(argv[2]));
    } else if (argc == 6 && strcmp(argv[1], "move") == 0) {
        move(atoi(argv[2]), argv + 3);
    } else {
        fprintf(stderr, "usage: counter [ask ENDPOINT | after ENDPOINT | move ENDPOINT NODE PID PLACE]\n");
        return 2;
    }
    return 0;
}
