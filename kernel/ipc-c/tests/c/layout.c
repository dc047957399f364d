/* The structures of the headers are those of the library. Compiled as C99 and as C++. */
#include <m3ipc.h>
#include <m3ipc_dvk.h>

#include <stddef.h>
#include <stdio.h>

#define IS(what, value)                                                        \
    do {                                                                       \
        if ((size_t)(what) != (size_t)(value)) {                               \
            printf("%s is %zu, not %zu\n", #what, (size_t)(what), (size_t)(value)); \
            faults++;                                                          \
        }                                                                      \
    } while (0)

int main(void)
{
    int faults = 0;
    IS(sizeof(m3_message), 64);
    IS(offsetof(m3_message, source), 0);
    IS(offsetof(m3_message, type), 4);
    IS(offsetof(m3_message, payload), 8);
    IS(sizeof(message), 64);
    IS(offsetof(message, m_source), 0);
    IS(offsetof(message, m_type), 4);
    IS(offsetof(message, m_u), 8);
    IS(offsetof(message, m9_t1), 16);
    IS(offsetof(message, m9_v1), 32);
    IS(sizeof(m3_event), 128);
    IS(offsetof(m3_event, mask), 16);
    IS(offsetof(m3_event, ring_id), 24);
    IS(offsetof(m3_event, ring), 32);
    IS(offsetof(m3_event, message), 64);
    IS(sizeof(m3_place), 24);
    IS(offsetof(m3_place, grant), 8);
    IS(offsetof(m3_place, offset), 16);
    IS(sizeof(m3_submission), 56);
    IS(offsetof(m3_submission, sequence), 8);
    IS(offsetof(m3_submission, arena_offset), 16);
    IS(offsetof(m3_submission, args), 32);
    IS(sizeof(m3_completion), 64);
    IS(offsetof(m3_completion, in_bytes), 16);
    IS(offsetof(m3_completion, epoch), 24);
    IS(offsetof(m3_completion, results), 32);
    IS(sizeof(m3_privileges), 784);
    IS(offsetof(m3_privileges, to), 4);
    IS(offsetof(m3_privileges, rings), 524);
    IS(sizeof(m3_info_dc), 64);
    IS(offsetof(m3_info_dc, channels_max), 40);
    IS(sizeof(m3_info_endpoint), 112);
    IS(offsetof(m3_info_endpoint, epoch), 24);
    IS(offsetof(m3_info_endpoint, sent_far), 64);
    IS(sizeof(m3_end), 32);
    IS(sizeof(m3_info_channel), 112);
    IS(offsetof(m3_info_channel, is_counted), 32);
    IS(offsetof(m3_info_channel, left), 48);
    IS(sizeof(m3_info_proxy), 32);
    IS(offsetof(m3_info_proxy, channels), 16);
    IS(sizeof(proc_usr_t), 64);
    IS(offsetof(proc_usr_t, p_nodeid), 24);
    IS(offsetof(proc_usr_t, p_lclsent), 32);
    IS(sizeof(dc_usr_t), 24);
    IS(sizeof(mess_1) <= 56 && sizeof(mess_2) <= 56 && sizeof(mess_3) <= 56 && sizeof(mess_4) <= 56, 1);
    IS(sizeof(mess_5) <= 56 && sizeof(mess_6) <= 56 && sizeof(mess_7) <= 56 && sizeof(mess_8) <= 56, 1);
    IS(sizeof(mess_9) <= 56 && sizeof(mess_A) <= 56 && sizeof(mess_B) <= 56 && sizeof(mess_C) <= 56, 1);
    IS(sizeof(m3_cs_holder), 32);
    IS(sizeof(m3_cs_change), 48);
    IS(offsetof(m3_cs_change, value), 24);
    IS(sizeof(m3_cs_node), 64);
    IS(sizeof(m3_group_member), 24);
    IS(sizeof(m3_group_event), 80);
    IS(offsetof(m3_group_event, members), 48);
    return faults;
}
