/*
 * Counts under a lock, and talks in a group, on as many nodes as you like.
 *
 *   cc coordination.c $(pkg-config --cflags --libs m3ipc) -o coordination
 *   dvs run -d shop --node n1 -- /dc/coordination n1
 *   dvs run -d shop --node n2 -- /dc/coordination n2
 *   dvs logs -f shop PID
 */
#include <m3ipc.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(const char *what, int result)
{
    if (result < 0) {
        fprintf(stderr, "coordination: %s: %s\n", what, m3_strerror(result));
        exit(1);
    }
    return result;
}

/* One more, by who has the lock alone. */
static int count(m3_cs *cs)
{
    uint64_t token;
    char text[32] = "0";
    check("lock", m3_cs_lock(cs, "counter", M3_FOREVER, &token));
    int bytes = m3_cs_get(cs, "counter", text, sizeof text - 1, NULL);
    if (bytes >= 0)
        text[bytes] = 0;
    int next = atoi(text) + 1;
    snprintf(text, sizeof text, "%d", next);
    check("put", m3_cs_put(cs, "counter", text, strlen(text), M3_CS_ANY, NULL));
    check("unlock", m3_cs_unlock(cs, "counter", token));
    return next;
}

static void show(void *argument, const m3_group_event *event)
{
    int *left = argument;
    if (event->kind == M3_GROUP_VIEW) {
        printf("view %" PRIu64 ":", event->number);
        for (size_t i = 0; i < event->member_count; i++)
            printf(" %s", event->members[i].name);
        printf("\n");
    } else {
        printf("%.*s\n", (int)event->bytes, (const char *)event->data);
        --*left;
    }
    fflush(stdout);
}

int main(int count_of_words, char **words)
{
    const char *name = count_of_words > 1 ? words[1] : "somebody";
    int left = count_of_words > 2 ? atoi(words[2]) : 1000000;
    m3_cs *cs;
    m3_group *group;
    char text[128];

    check("open", m3_cs_open(NULL, &cs));
    check("join", m3_group_join(cs, "example", name, M3_FOREVER, &group));
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s counts %d", name, count(cs));
        check("send", m3_group_send(group, M3_GROUP_SAFE, text, strlen(text)));
    }
    while (left > 0)
        check("receive", m3_group_receive(group, M3_FOREVER, show, &left));
    check("leave", m3_group_leave(group));
    check("close", m3_cs_close(cs));
    return 0;
}
