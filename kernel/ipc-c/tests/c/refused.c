/* In a container where programs may talk to servers alone, and two of them may be bound. */
#include "check.h"

#include <m3ipc_dvk.h>

int main(void)
{
    m3_port *one = bound(), *two = bound(), *three;
    m3_message m = typed(1);
    m3_ring *ring;
    uint64_t grant;
    int to = m3_endpoint(two);
    IS(m3_connect(NULL, M3_ANY, &three), M3_EFULL);
    IS(m3_connect(NULL, 300, &three), M3_EENDPOINT);
    IS(m3_send(one, to, &m, SOON), M3_EDENIED);
    IS(m3_sendrec(one, to, &m, SOON), M3_EDENIED);
    IS(m3_notify(one, to, 1), M3_EDENIED);
    IS(m3_receive(one, to, &m, SOON), M3_EDENIED);
    IS(m3_ring_open(one, to, 8, 0, SOON, &ring), M3_EDENIED);
    IS(m3_ring_open(one, 1, 8, 0, SOON, &ring), M3_EDENIED);
    IS(m3_reply(one, to, &m), M3_ENOTWAITING);
    IS(m3_notify(one, 2, 1), 0);
    IS(m3_send(one, 2, &m, NEVER_MIND), M3_ETIMEDOUT);
    IS(m3_grant(one, to, &m, sizeof m, M3_READ, &grant), 0);
    IS(m3_close(one), 0);
    IS(m3_close(two), 0);
    CHECK(dvk_bind(0, NONE) >= M3_FIRST_PROGRAM);
    IS(dvk_notify(257), EDVSPRIVILEGES);
    return faults != 0;
}
