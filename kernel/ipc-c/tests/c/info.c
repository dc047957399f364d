/* What members learn about their container. */
#include "check.h"

#include <stddef.h>

#define REQUESTS 4

static void *answering(void *with)
{
    m3_message m;
    for (int count = 0; count < REQUESTS; count++) {
        IS(m3_rcvrqst(with, &m, SOON), 0);
        IS(m3_reply(with, m.source, &m), 0);
    }
    return NULL;
}

/* How many of a list, asked for one by one; the last of `wanted` goes to `found`. */
static int endpoints(m3_port *port, int wanted, m3_info_endpoint *found)
{
    uint64_t cursor = 0;
    int all = 0, count;
    do {
        m3_info_endpoint one;
        count = m3_endpoints_info(port, &cursor, &one, 1);
        CHECK(count >= 0 && count <= 1);
        if (count == 1 && one.endpoint == wanted)
            *found = one;
        all += count > 0 ? count : 0;
    } while (count >= 0 && cursor != 0);
    return all;
}

static void members_see_each_other(m3_port *client, m3_port *server)
{
    m3_info_endpoint found = { 0 }, me;
    m3_info_dc dc;
    int own = m3_endpoint(client), to = m3_endpoint(server);
    IS(endpoints(client, to, &found), 2);
    IS(found.endpoint, to);
    IS(found.pid, (int)getpid());
    IS(found.state, M3_STATE_BOUND);
    IS(m3_endpoint_info(client, own, &me), 0);
    IS((int)me.channels, 1);
    IS((int)me.sent_near.messages, REQUESTS);
    IS((int)me.sent_near.notifications, 1);
    IS((int)me.sent_far.messages, 0);
    IS(me.waits_for, -1);
    IS(m3_dc_info(client, &dc), 0);
    IS((int)dc.endpoints_here, 2);
    IS((int)dc.channels, 1);
    IS((int)dc.endpoints_max, M3_ENDPOINTS);
    CHECK(own >= (int)dc.first_program && own < (int)(dc.first_program + dc.programs));
}

static void channel_tells_what_it_counts(m3_port *client, m3_port *server)
{
    m3_info_channel list[8];
    m3_info_proxy proxy;
    uint64_t cursor = 0;
    int own = m3_endpoint(client);
    IS(m3_channels_info(client, own, &cursor, list, 8), 1);
    IS((int)cursor, 0);
    IS(list[0].kind, M3_CHANNEL_MESSAGES);
    IS(list[0].node, 0);
    IS(list[0].is_counted, 1);
    IS(list[0].left.endpoint, own);
    IS((int)list[0].left.messages, REQUESTS);
    IS(list[0].left.last, M3_SENT_REQUEST);
    IS(list[0].left.awaits_answer, 0);
    IS((int)list[0].left.notifications, 1);
    IS(list[0].right.endpoint, m3_endpoint(server));
    IS(list[0].right.last, M3_SENT_REPLY);
    IS((int)list[0].right.taken, REQUESTS);
    IS(m3_channels_info(client, M3_ANY, &cursor, list, 8), 1);
    IS(m3_proxies_info(client, &cursor, &proxy, 1), 0);
    IS((int)cursor, 0);
}

static void what_means_nothing_is_refused(m3_port *port)
{
    m3_info_endpoint one;
    m3_info_channel channel;
    uint64_t cursor = 0;
    IS(m3_dc_info(port, NULL), M3_EINVALID);
    IS(m3_endpoint_info(port, 7000, &one), M3_ENOENDPOINT);
    IS(m3_endpoint_info(port, M3_ENDPOINTS, &one), M3_EENDPOINT);
    IS(m3_endpoint_info(port, 300, NULL), M3_EINVALID);
    IS(m3_endpoints_info(port, NULL, &one, 1), M3_EINVALID);
    IS(m3_endpoints_info(port, &cursor, NULL, 1), M3_EINVALID);
    IS(m3_endpoints_info(port, &cursor, &one, 0), M3_EINVALID);
    IS(m3_channels_info(port, -2, &cursor, &channel, 1), M3_EENDPOINT);
    IS(m3_channels_info(NULL, M3_ANY, &cursor, &channel, 1), M3_ENOTBOUND);
    cursor = UINT64_MAX;
    IS(m3_endpoints_info(port, &cursor, &one, 1), 0);
    IS((int)cursor, 0);
}

int main(void)
{
    m3_port *client = bound(), *server = bound();
    int to = m3_endpoint(server);
    pthread_t thread = begin(answering, server);
    m3_message m = typed(1);
    for (int count = 0; count < REQUESTS; count++)
        IS(m3_sendrec(client, to, &m, SOON), 0);
    end(thread);
    IS(m3_notify(client, to, 1), 0);
    members_see_each_other(client, server);
    channel_tells_what_it_counts(client, server);
    what_means_nothing_is_refused(client);
    IS(m3_close(client), 0);
    IS(m3_close(server), 0);
    return faults != 0;
}
