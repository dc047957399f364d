//! What every pair of endpoints may rely on, wherever the two are: one list of cases, run with peers on one node and
//! with peers on two nodes behind proxies.
//!
//! A case panics when the promise is broken. Each wants a fresh [`World`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod copies;
mod deadlocks;
mod delegation;
mod descriptors;
mod giving_up;
mod info;
mod messages;
mod migration;
mod names;
mod privileges;
mod rings;

use std::path::PathBuf;
use std::time::Duration;

use crate::{Endpoint, NodeId, Port, RingSpec, Wait};

/// One container, seen from where its clients and from where its servers run. Programs may open anything.
pub trait World: Sync {
    /// A server where the servers run. Panics when it cannot be bound.
    fn server(&self, endpoint: Endpoint, epoch: u64) -> Port;
    /// A server where the clients run.
    fn near_server(&self, endpoint: Endpoint, epoch: u64) -> Port;
    /// A program where the clients run.
    fn program(&self) -> Port;
    /// Where the clients run: the node, and where programs connect.
    fn near(&self) -> (NodeId, PathBuf);
    /// Where the servers run.
    fn far(&self) -> (NodeId, PathBuf);
}

/// A named promise.
pub type Case = (&'static str, fn(&dyn World));

/// Every case, or those whose name has what the environment variable `CASE` says.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    let wanted = std::env::var("CASE").unwrap_or_default();
    CASES.iter().filter(move |(name, _)| name.contains(&wanted))
}

const CASES: &[Case] = &[
    ("request_is_answered_by_its_server", messages::request_is_answered_by_its_server),
    ("data_travels_inline_with_request_and_reply", messages::data_travels_inline_with_request_and_reply),
    (
        "timed_send_that_nobody_takes_is_withdrawn_and_never_delivered",
        messages::timed_send_that_nobody_takes_is_withdrawn_and_never_delivered,
    ),
    (
        "late_reply_to_a_request_that_was_given_up_is_refused_and_never_taken_for_another",
        messages::late_reply_to_a_request_that_was_given_up_is_refused_and_never_taken_for_another,
    ),
    (
        "message_to_a_caller_that_gave_up_comes_as_a_message",
        messages::message_to_a_caller_that_gave_up_comes_as_a_message,
    ),
    ("messages_that_are_taken_back_at_once_harm_nothing", messages::messages_that_are_taken_back_at_once_harm_nothing),
    (
        "message_after_a_reply_that_came_too_late_is_taken_for_none_before_it",
        messages::message_after_a_reply_that_came_too_late_is_taken_for_none_before_it,
    ),
    ("send_to_a_caller_that_waits_is_its_reply", messages::send_to_a_caller_that_waits_is_its_reply),
    ("higher_endpoint_gives_way_when_both_send", messages::higher_endpoint_gives_way_when_both_send),
    ("notifications_merge_and_every_bit_arrives", messages::notifications_merge_and_every_bit_arrives),
    ("notification_arrives_although_its_source_is_gone", messages::notification_arrives_although_its_source_is_gone),
    (
        "requests_are_taken_while_messages_and_notifications_stay",
        messages::requests_are_taken_while_messages_and_notifications_stay,
    ),
    ("opening_waits_until_the_server_is_bound", messages::opening_waits_until_the_server_is_bound),
    ("ring_carries_many_requests_with_their_data", rings::ring_carries_many_requests_with_their_data),
    ("ring_takes_no_more_than_it_has_entries", rings::ring_takes_no_more_than_it_has_entries),
    ("client_of_a_ring_learns_that_its_server_ended", rings::client_of_a_ring_learns_that_its_server_ended),
    ("armed_ring_rings_for_completions_and_for_the_end", rings::armed_ring_rings_for_completions_and_for_the_end),
    ("server_copies_from_and_to_its_caller", copies::server_copies_from_and_to_its_caller),
    ("caller_copies_from_and_to_a_server_that_waits", copies::caller_copies_from_and_to_a_server_that_waits),
    (
        "stream_of_copies_that_are_asked_for_ahead_brings_what_single_ones_bring",
        copies::stream_of_copies_that_are_asked_for_ahead_brings_what_single_ones_bring,
    ),
    (
        "copy_asked_for_ahead_is_forgotten_for_another_and_refused_when_it_is_called",
        copies::copy_asked_for_ahead_is_forgotten_for_another_and_refused_when_it_is_called,
    ),
    (
        "copy_outside_what_was_granted_moves_nothing_and_says_why",
        copies::copy_outside_what_was_granted_moves_nothing_and_says_why,
    ),
    (
        "copy_waits_for_its_owner_as_long_as_it_is_told_and_comes_in_order",
        copies::copy_waits_for_its_owner_as_long_as_it_is_told_and_comes_in_order,
    ),
    ("copier_learns_that_the_owner_died", copies::copier_learns_that_the_owner_died),
    ("two_that_copy_from_each_other_at_once_both_go_on", copies::two_that_copy_from_each_other_at_once_both_go_on),
    ("third_party_copies_between_two_owners", copies::third_party_copies_between_two_owners),
    ("arena_of_a_ring_can_be_granted", copies::arena_of_a_ring_can_be_granted),
    (
        "later_owner_of_a_number_does_not_inherit_its_grants",
        copies::later_owner_of_a_number_does_not_inherit_its_grants,
    ),
    (
        "grant_given_after_its_copier_was_replaced_is_the_next_ones",
        copies::grant_given_after_its_copier_was_replaced_is_the_next_ones,
    ),
    ("third_party_that_leaves_a_grant_moves_nothing", copies::third_party_that_leaves_a_grant_moves_nothing),
    ("third_party_copies_within_one_grant", copies::third_party_copies_within_one_grant),
    ("own_grant_is_used_as_it_was_lent", copies::own_grant_is_used_as_it_was_lent),
    ("many_copiers_are_all_served", copies::many_copiers_are_all_served),
    (
        "relayed_request_is_answered_by_its_target_in_the_name_of_its_client",
        delegation::relayed_request_is_answered_by_its_target_in_the_name_of_its_client,
    ),
    (
        "many_relays_are_under_way_and_answered_in_any_order",
        delegation::many_relays_are_under_way_and_answered_in_any_order,
    ),
    (
        "relayed_request_is_answered_once_and_by_nobody_else",
        delegation::relayed_request_is_answered_once_and_by_nobody_else,
    ),
    (
        "request_that_cannot_be_relayed_stays_with_its_server",
        delegation::request_that_cannot_be_relayed_stays_with_its_server,
    ),
    (
        "full_lane_refuses_relays_and_still_carries_notifications",
        delegation::full_lane_refuses_relays_and_still_carries_notifications,
    ),
    (
        "client_learns_that_the_target_of_its_request_died",
        delegation::client_learns_that_the_target_of_its_request_died,
    ),
    (
        "client_learns_that_its_delegator_may_delegate_no_more",
        delegation::client_learns_that_its_delegator_may_delegate_no_more,
    ),
    (
        "client_learns_that_its_delegator_died_and_the_target_that_nobody_waits",
        delegation::client_learns_that_its_delegator_died_and_the_target_that_nobody_waits,
    ),
    (
        "late_reply_to_a_relayed_request_is_taken_for_no_other",
        delegation::late_reply_to_a_relayed_request_is_taken_for_no_other,
    ),
    ("client_that_died_is_no_trouble_to_who_answers_it", delegation::client_that_died_is_no_trouble_to_who_answers_it),
    (
        "client_that_gave_up_and_calls_the_target_itself_gets_the_answer_to_that",
        delegation::client_that_gave_up_and_calls_the_target_itself_gets_the_answer_to_that,
    ),
    (
        "client_that_gave_up_a_direct_call_gets_the_answer_to_what_is_relayed_then",
        delegation::client_that_gave_up_a_direct_call_gets_the_answer_to_what_is_relayed_then,
    ),
    ("receive_from_a_client_takes_what_comes_by_relay", delegation::receive_from_a_client_takes_what_comes_by_relay),
    (
        "delegator_hands_answers_on_while_it_waits_for_another",
        delegation::delegator_hands_answers_on_while_it_waits_for_another,
    ),
    (
        "relayed_request_can_be_relayed_on_and_comes_back_the_same_way",
        delegation::relayed_request_can_be_relayed_on_and_comes_back_the_same_way,
    ),
    ("client_learns_that_the_last_of_a_chain_died", delegation::client_learns_that_the_last_of_a_chain_died),
    (
        "notifications_for_others_merge_by_source_and_every_bit_arrives",
        delegation::notifications_for_others_merge_by_source_and_every_bit_arrives,
    ),
    ("clients_of_several_delegators_are_all_served", delegation::clients_of_several_delegators_are_all_served),
    ("every_blocking_call_ends_at_its_limit", messages::every_blocking_call_ends_at_its_limit),
    ("receive_from_one_passes_over_all_others", messages::receive_from_one_passes_over_all_others),
    (
        "wait_for_one_peer_takes_its_notifications_before_its_messages_and_leaves_others",
        messages::wait_for_one_peer_takes_its_notifications_before_its_messages_and_leaves_others,
    ),
    ("reply_goes_only_to_who_waits_for_it", messages::reply_goes_only_to_who_waits_for_it),
    ("number_is_bound_once_and_free_after_unbind", messages::number_is_bound_once_and_free_after_unbind),
    ("program_is_found_by_its_pid_from_everywhere", messages::program_is_found_by_its_pid_from_everywhere),
    ("many_clients_are_all_served", messages::many_clients_are_all_served),
    (
        "descriptor_rings_after_a_late_reply_and_after_a_call",
        descriptors::descriptor_rings_after_a_late_reply_and_after_a_call,
    ),
    (
        "descriptor_rings_for_what_came_during_other_calls",
        descriptors::descriptor_rings_for_what_came_during_other_calls,
    ),
    ("circle_of_calls_is_broken_at_its_highest_endpoint", deadlocks::circle_of_calls_is_broken_at_its_highest_endpoint),
    ("circle_of_sends_loses_and_doubles_nothing", deadlocks::circle_of_sends_loses_and_doubles_nothing),
    (
        "answer_to_a_call_that_was_refused_is_in_nobodys_way",
        deadlocks::answer_to_a_call_that_was_refused_is_in_nobodys_way,
    ),
    ("circle_with_a_receiver_is_broken", deadlocks::circle_with_a_receiver_is_broken),
    ("chain_of_calls_that_ends_is_left_alone", deadlocks::chain_of_calls_that_ends_is_left_alone),
    ("circle_with_a_limit_is_left_to_the_limit", deadlocks::circle_with_a_limit_is_left_to_the_limit),
    ("privileges_that_were_set_are_those_that_are_told", privileges::privileges_that_were_set_are_those_that_are_told),
    ("who_is_no_manager_changes_nothing", privileges::who_is_no_manager_changes_nothing),
    (
        "manager_ends_the_wait_of_a_receiver_wherever_it_is",
        privileges::manager_ends_the_wait_of_a_receiver_wherever_it_is,
    ),
    (
        "call_that_the_privileges_leave_out_is_refused_and_the_others_go_on",
        privileges::call_that_the_privileges_leave_out_is_refused_and_the_others_go_on,
    ),
    ("answering_needs_no_privilege", privileges::answering_needs_no_privilege),
    ("server_is_called_only_by_those_it_is_open_to", privileges::server_is_called_only_by_those_it_is_open_to),
    (
        "revocation_ends_a_call_that_waits_and_later_ones_until_it_is_taken_back",
        privileges::revocation_ends_a_call_that_waits_and_later_ones_until_it_is_taken_back,
    ),
    ("revocation_ends_rings_and_copies", privileges::revocation_ends_rings_and_copies),
    (
        "endpoint_is_handed_over_and_back_and_nothing_is_lost_or_doubled",
        migration::endpoint_is_handed_over_and_back_and_nothing_is_lost_or_doubled,
    ),
    ("owner_hands_itself_over_when_it_owes_nothing", migration::owner_hands_itself_over_when_it_owes_nothing),
    (
        "held_endpoint_takes_nothing_and_goes_on_after_rollback",
        migration::held_endpoint_takes_nothing_and_goes_on_after_rollback,
    ),
    ("held_endpoint_takes_no_relayed_request_either", migration::held_endpoint_takes_no_relayed_request_either),
    (
        "start_waits_for_what_is_owed_and_is_taken_back_at_its_limit",
        migration::start_waits_for_what_is_owed_and_is_taken_back_at_its_limit,
    ),
    (
        "copier_learns_that_the_owner_was_handed_over_as_of_its_end",
        migration::copier_learns_that_the_owner_was_handed_over_as_of_its_end,
    ),
    ("commit_to_nobody_leaves_the_endpoint_held", migration::commit_to_nobody_leaves_the_endpoint_held),
    ("hold_ends_with_who_held", migration::hold_ends_with_who_held),
    ("promoted_backup_fences_the_primary_before_it", migration::promoted_backup_fences_the_primary_before_it),
    ("endpoint_is_found_by_its_name_from_everywhere", names::endpoint_is_found_by_its_name_from_everywhere),
    ("name_is_waited_for_until_somebody_has_it", names::name_is_waited_for_until_somebody_has_it),
    ("first_who_claims_a_name_has_it", names::first_who_claims_a_name_has_it),
    ("name_goes_with_its_endpoint_and_is_free_for_another", names::name_goes_with_its_endpoint_and_is_free_for_another),
    ("what_is_no_name_is_refused", names::what_is_no_name_is_refused),
    ("find_ends_at_its_limit_and_the_next_one_begins", names::find_ends_at_its_limit_and_the_next_one_begins),
    ("name_stays_when_its_endpoint_has_another_owner", names::name_stays_when_its_endpoint_has_another_owner),
    ("promoted_backup_is_called_as_the_primary_was", names::promoted_backup_is_called_as_the_primary_was),
    (
        "members_see_who_is_there_and_what_their_channels_count",
        info::members_see_who_is_there_and_what_their_channels_count,
    ),
    ("who_waits_for_whom_is_seen", info::who_waits_for_whom_is_seen),
    (
        "counts_outlive_their_channels_and_not_their_endpoint",
        info::counts_outlive_their_channels_and_not_their_endpoint,
    ),
    ("who_may_not_ask_is_told_nothing", info::who_may_not_ask_is_told_nothing),
    ("only_managers_and_owners_hand_over", migration::only_managers_and_owners_hand_over),
];

/// Long enough for anything that happens at all.
const SOON: Wait = Wait::For(Duration::from_secs(30));
/// Long enough to see that something does not happen.
const NEVER_MIND: Wait = Wait::For(Duration::from_millis(30));

const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };
