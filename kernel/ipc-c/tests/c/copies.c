/* Grants and copies. */
#include "check.h"

#include <sys/mman.h>

#define BYTES 300000

struct lender {
    m3_port *port;
    int to;
    uint64_t grant;
    int result;
};

/* Lends while it waits for its reply. */
static void *lending(void *with)
{
    struct lender *lender = with;
    m3_message message = typed(1);
    message.payload.u64[0] = lender->grant;
    lender->result = m3_sendrec(lender->port, lender->to, &message, SOON);
    return NULL;
}

static void fill(unsigned char *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 31 + i / 251 + seed);
}

static m3_place place(int owner, uint64_t grant, uint64_t offset)
{
    m3_place made = { owner, 0, grant, offset };
    return made;
}

static void server_copies_from_and_to_what_its_caller_lent(void)
{
    static unsigned char lent[BYTES], copy[BYTES];
    m3_port *server = bound();
    struct lender lender = { bound(), m3_endpoint(server), 0, 1 };
    m3_message request;
    fill(lent, BYTES, 1);
    IS(m3_grant(lender.port, lender.to, lent, BYTES, M3_READ | M3_WRITE, &lender.grant), 0);
    CHECK(lender.grant != 0);
    pthread_t thread = begin(lending, &lender);
    IS(m3_rcvrqst(server, &request, SOON), 0);
    m3_place from = place(request.source, request.payload.u64[0], 100), to = from;
    IS(m3_copy_from(server, &from, copy, BYTES - 100, SOON), 0);
    CHECK(memcmp(copy, lent + 100, BYTES - 100) == 0);
    to.offset = 7;
    fill(copy, 1000, 9);
    IS(m3_copy_to(server, copy, 1000, &to, SOON), 0);
    IS(m3_copy_from(server, &from, NULL, 0, SOON), 0);
    IS(m3_reply(server, request.source, &request), 0);
    end(thread);
    IS(lender.result, 0);
    CHECK(memcmp(lent + 7, copy, 1000) == 0);
    IS(m3_revoke(lender.port, lender.grant), 0);
    IS(m3_revoke(lender.port, lender.grant), M3_EREVOKED);
    IS(m3_revoke(lender.port, 0), M3_EGRANT);
    m3_close(lender.port);
    m3_close(server);
}

/* What may be read only may also lie in pages that cannot be written. */
static void copy_that_was_not_granted_moves_nothing_and_says_why(void)
{
    unsigned char data[100] = { 0 };
    unsigned char *fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m3_port *server = bound(), *stranger = bound();
    struct lender lender = { bound(), m3_endpoint(server), 0, 1 };
    uint64_t writable, gone;
    m3_message request;
    IS(m3_grant(lender.port, lender.to, fixed, 4096, M3_READ, &lender.grant), 0);
    IS(m3_grant(lender.port, lender.to, data, 50, M3_WRITE, &writable), 0);
    IS(m3_grant(lender.port, lender.to, data, 50, M3_WRITE, &gone), 0);
    IS(m3_revoke(lender.port, gone), 0);
    pthread_t thread = begin(lending, &lender);
    IS(m3_rcvrqst(server, &request, SOON), 0);
    int owner = request.source;
    m3_place readable = place(owner, lender.grant, 0), beyond = place(owner, lender.grant, 4000);
    m3_place write_only = place(owner, writable, 0), revoked = place(owner, gone, 0), never = place(owner, 12345, 0);
    m3_place own = place(m3_endpoint(server), lender.grant, 0);
    IS(m3_copy_from(server, &readable, data, 100, SOON), 0);
    IS(m3_copy_from(server, &beyond, data, 100, SOON), M3_ERANGE);
    IS(m3_copy_to(server, data, 100, &readable, SOON), M3_EACCESS);
    IS(m3_copy_from(server, &write_only, data, 10, SOON), M3_EACCESS);
    IS(m3_copy_from(server, &revoked, data, 10, SOON), M3_EREVOKED);
    IS(m3_copy_from(server, &never, data, 10, SOON), M3_EGRANT);
    IS(m3_copy_from(server, &own, data, 10, SOON), M3_EENDPOINT);
    IS(m3_copy_from(stranger, &readable, data, 10, SOON), M3_EDENIED);
    IS(m3_copy_from(server, &readable, NULL, 10, SOON), M3_EINVALID);
    IS(m3_copy_from(server, NULL, data, 10, SOON), M3_EINVALID);
    IS(m3_copy_to(server, NULL, 10, &readable, SOON), M3_EINVALID);
    IS(m3_copy_from(server, &readable, data, ((size_t)64 << 20) + 1, SOON), M3_EINVALID);
    IS(m3_reply(server, owner, &request), 0);
    end(thread);
    IS(lender.result, 0);
    IS(m3_copy_from(server, &readable, data, 10, NEVER_MIND), M3_ETIMEDOUT);
    IS(m3_grant(server, owner, data, 0, M3_READ, &gone), M3_EINVALID);
    IS(m3_grant(server, owner, NULL, 10, M3_READ, &gone), M3_EINVALID);
    IS(m3_grant(server, owner, data, 10, 0, &gone), M3_EINVALID);
    IS(m3_grant(server, owner, data, 10, 4, &gone), M3_EINVALID);
    IS(m3_grant(server, owner, data, 10, M3_READ, NULL), M3_EINVALID);
    IS(m3_grant(server, m3_endpoint(server), data, 10, M3_READ, &gone), M3_EENDPOINT);
    m3_close(lender.port);
    m3_close(stranger);
    m3_close(server);
    munmap(fixed, 4096);
}

static void third_party_copies_between_two_owners(void)
{
    static unsigned char source[BYTES], target[BYTES];
    m3_port *third = bound();
    int to = m3_endpoint(third);
    struct lender one = { bound(), to, 0, 1 }, other = { bound(), to, 0, 1 };
    int source_owner = m3_endpoint(one.port), target_owner = m3_endpoint(other.port);
    m3_message first, second;
    fill(source, BYTES, 3);
    IS(m3_grant(one.port, to, source, BYTES, M3_READ, &one.grant), 0);
    IS(m3_grant(other.port, to, target, BYTES, M3_WRITE, &other.grant), 0);
    pthread_t threads[] = { begin(lending, &one), begin(lending, &other) };
    IS(m3_rcvrqst(third, &first, SOON), 0);
    IS(m3_rcvrqst(third, &second, SOON), 0);
    m3_place from = place(source_owner, one.grant, 0), into = place(target_owner, other.grant, 0);
    IS(m3_vcopy(third, &from, &into, BYTES, SOON), 0);
    IS(m3_vcopy(third, &into, &from, 10, SOON), M3_EACCESS);
    IS(m3_vcopy(third, &from, NULL, 10, SOON), M3_EINVALID);
    IS(m3_reply(third, first.source, &first), 0);
    IS(m3_reply(third, second.source, &second), 0);
    end(threads[0]);
    end(threads[1]);
    IS(one.result, 0);
    IS(other.result, 0);
    CHECK(memcmp(source, target, BYTES) == 0);
    m3_close(one.port);
    m3_close(other.port);
    m3_close(third);
}

static void own_grant_is_used_as_it_was_lent(void)
{
    static unsigned char memory[100];
    m3_port *server = bound(), *port = bound();
    uint64_t readable = 0, writable = 0;
    fill(memory, sizeof memory, 4);
    unsigned char first = memory[0];
    IS(m3_grant(port, m3_endpoint(server), memory, 100, M3_READ, &readable), 0);
    IS(m3_grant(port, m3_endpoint(server), memory, 100, M3_WRITE, &writable), 0);
    m3_place from = place(m3_endpoint(port), readable, 0), into = place(m3_endpoint(port), writable, 50);
    m3_place wrong = place(m3_endpoint(port), readable, 50);
    IS(m3_vcopy(port, &from, &wrong, 50, SOON), M3_EACCESS);
    IS(m3_vcopy(port, &into, &into, 50, SOON), M3_EACCESS);
    IS(m3_vcopy(port, &from, &into, (64 << 20) + 1, SOON), M3_EINVALID);
    IS(m3_vcopy(port, &from, &into, 50, SOON), 0);
    CHECK(memory[50] == first);
    m3_close(port);
    m3_close(server);
}

int main(void)
{
    own_grant_is_used_as_it_was_lent();
    server_copies_from_and_to_what_its_caller_lent();
    copy_that_was_not_granted_moves_nothing_and_says_why();
    third_party_copies_between_two_owners();
    return faults != 0;
}
