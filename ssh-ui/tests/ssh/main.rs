//! The SSH server with OpenSSH's own clients and a real kube-apiserver that authorizes by RBAC.

// Clippy exempts tests from these lints, but not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod api;
mod audit;
mod commands;
mod files;
mod interface;
mod isolation;
mod join;
mod other;
mod person;
mod pressure;
mod programs;
mod refused_clients;
mod tmux;
mod window;
mod world;

use crate::world::World;

/// All tests share one host, because its start takes most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_served_over_ssh() {
    let world = World::start().await;
    commands::clusters_are_made_shown_and_deleted(&world).await;
    commands::waiting_tells_what_for_and_ends(&world).await;
    commands::nodes_are_those_of_the_clusters_own_api(&world).await;
    commands::a_join_that_is_broken_off_leaves_nothing(&world).await;
    commands::a_join_that_cannot_come_about_is_answered_at_once(&world).await;
    commands::wrong_lines_say_what_would_be_right(&world).await;
    programs::worker_programs_are_sent_completely(&world).await;
    programs::a_tenant_is_sent_no_more_than_its_share(&world).await;
    programs::a_line_runs_no_other_program(&world).await;
    files::kubeconfigs_are_copied_and_nothing_is_written(&world).await;
    isolation::another_tenants_objects_are_as_if_they_were_not(&world).await;
    isolation::server_has_no_permissions_of_its_own(&world).await;
    interface::clusters_are_made_followed_and_deleted(&world).await;
    interface::a_sleeping_cluster_is_woken(&world).await;
    interface::kubeconfig_is_printed_below(&world).await;
    interface::colors_follow_the_environment(&world).await;
    interface::clients_without_a_screen_get_the_same_text(&world).await;
    interface::terminal_is_restored_however_it_ends(&world).await;
    interface::lost_host_is_watched_again(&world).await;
    interface::floods_of_input_are_discarded(&world).await;
    interface::terminal_prompts_for_the_name(&world).await;
    api::a_program_does_what_its_token_permits(&world).await;
    api::tokens_that_are_no_good_are_refused(&world).await;
    api::nothing_but_a_line_is_read(&world).await;
    api::a_key_that_is_taken_away_takes_its_tokens_along(&world).await;
    join::join_command_is_printed_and_revoked(&world).await;
    join::waiting_for_a_line_can_be_given_up(&world).await;
    join::join_command_is_copied_as_one_line(&world).await;
    audit::each_deed_is_one_line(&world).await;
    audit::refused_clients_are_logged(&world).await;
    tmux::a_real_terminal_is_left_as_it_was(&world).await;
    refused_clients::unknown_keys_are_refused_with_what_to_do(&world).await;
    refused_clients::removed_key_loses_access_at_once(&world).await;
    refused_clients::nothing_but_commands_is_served(&world).await;
    pressure::clients_that_send_ahead_are_served(&world).await;
    pressure::key_exchanges_that_cost_much_are_refused(&world).await;
    pressure::one_connection_serves_many_commands(&world).await;
    pressure::unread_output_is_dropped(&world).await;
    pressure::newcomers_take_no_more_than_their_share(&world).await;
    pressure::a_tenant_takes_no_more_than_its_share(&world).await;
    pressure::clients_wait_until_all_tenants_are_known(&world).await;
    refused_clients::one_key_cannot_flood(&world).await;
    world.unusable_host_keys_are_errors().await;
    world.restarted_server_has_the_same_key().await;
}
