/* Tells its endpoint, waits until a manager ends the wait, then binds as the server whose socket is descriptor 0. */
#include "check.h"

int main(void)
{
    m3_port *port = bound(), *server;
    m3_message m;
    printf("endpoint %d\n", m3_endpoint(port));
    fflush(stdout);
    IS(m3_receive(port, M3_ANY, &m, SOON), M3_EWOKENUP);
    IS(m3_connect_fd(0, M3_ANY, &server), 0);
    IS(m3_endpoint(server), 5);
    return faults != 0;
}
