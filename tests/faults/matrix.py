"""What can go wrong, what onelog promises then, and the tests that show it.

One list for three readers: ``make faults`` runs the tests (tests/faults/campaign.py),
docs/faults.md is made from it and from the last results, and tests/faults/test_matrix.py checks
that the page is that one and that every test exists. Tests are named relative to ``tests``.
"""

from dataclasses import dataclass

PROCESSES = "real processes"
NAMESPACES = "real processes in network namespaces"
DISKS = "real processes on a tmpfs"
CLOCKS = "real processes with libfaketime"
SLOWED = "real processes whose syncs wait"
SIMULATED_DISK = "a simulated disk"
SIMULATOR = "the simulator: simulated network, disks and clocks"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: a fault of a kind, the promise, how it is shown, and by which tests."""

    kind: str
    name: str
    promise: str
    shown_by: str
    tests: tuple[str, ...]


MATRIX = (
    Fault(
        "Processes",
        "kill -9 of leaders under load",
        "Another node leads. No acknowledged write is lost or done twice, in any model.",
        PROCESSES,
        (
            "system/test_kills.py::"
            "test_no_acknowledged_write_is_lost_when_leaders_are_killed_under_load",
            "system/test_mixed_load.py::"
            "test_no_effect_is_lost_doubled_or_told_twice_in_any_model_while_servers_fail",
        ),
    ),
    Fault(
        "Processes",
        "kill -9 of all nodes at once",
        "They start again with everything that was acknowledged.",
        PROCESSES,
        (
            "system/test_kills.py::test_nothing_acknowledged_is_lost_when_all_are_killed_at_once",
            "faults/test_killed_process.py::"
            "test_a_process_killed_while_writing_loses_nothing_it_called_durable",
        ),
    ),
    Fault(
        "Processes",
        "a process that stops for a while and goes on",
        "A leader finds itself replaced and answers nothing old; a follower deposes nobody.",
        PROCESSES,
        (
            "system/test_kills.py::test_a_leader_that_was_stopped_finds_itself_replaced",
            "system/test_kills.py::test_a_follower_that_was_stopped_catches_up_and_deposes_nobody",
        ),
    ),
    Fault(
        "Power",
        "power loss after any file operation",
        "What was synced is there after a restart, and what was not is there whole or not at all.",
        SIMULATED_DISK,
        (
            "faults/test_crash_sweep.py::"
            "test_a_crash_after_any_file_operation_loses_nothing_that_was_synced",
            "faults/test_crash_sweep.py::"
            "test_a_cut_over_many_files_is_finished_after_a_crash_at_any_point",
            "snapshot/test_crash_sweep.py::test_a_crash_after_any_file_operation_loses_nothing",
        ),
    ),
    Fault(
        "Power",
        "power loss of all nodes at once",
        "Nothing that was acknowledged is lost.",
        SIMULATOR,
        (
            "simulation/test_world.py::"
            "test_nothing_acknowledged_is_lost_when_everybody_loses_power_at_once",
        ),
    ),
    Fault(
        "Network",
        "a leader is cut off from the other nodes, also from clients",
        "The majority elects another and goes on. The old leader acknowledges and reads nothing, "
        "and follows when it is back. Histories are linearizable.",
        NAMESPACES,
        ("faults/test_networks.py::test_a_leader_that_is_cut_off_is_replaced_and_answers_nobody",),
    ),
    Fault(
        "Network",
        "packets of a leader do not arrive, and it hears the others",
        "Another is elected, and the load goes on.",
        NAMESPACES,
        ("faults/test_networks.py::test_a_leader_whose_packets_do_not_arrive_is_replaced",),
    ),
    Fault(
        "Network",
        "a follower is cut off and comes back",
        "The others go on, and it deposes nobody.",
        NAMESPACES,
        (
            "faults/test_networks.py::"
            "test_a_follower_that_was_cut_off_comes_back_and_deposes_nobody",
        ),
    ),
    Fault(
        "Network",
        "every node is cut off from the others",
        "Nothing is acknowledged or read; afterwards all goes on.",
        NAMESPACES,
        ("faults/test_networks.py::test_without_a_majority_nothing_is_acknowledged",),
    ),
    Fault(
        "Network",
        "packets are lost (5 %), repeated (5 %) and late (20 %)",
        "The load goes on; no write is lost or done twice.",
        NAMESPACES,
        (
            "faults/test_networks.py::"
            "test_packets_that_are_lost_repeated_and_late_lose_and_repeat_no_write",
        ),
    ),
    Fault(
        "Network",
        "all of these with crashes, full and failing disks, and clocks that jump, at random",
        "Every promise of guarantees.md holds.",
        SIMULATOR,
        (
            "simulation/test_world.py::test_every_promise_holds_in_a_run_of_random_faults",
            "simulation/test_world.py::"
            "test_a_member_that_was_cut_off_does_not_depose_a_healthy_leader",
        ),
    ),
    Fault(
        "Disks",
        "a slow disk: half a second for each sync",
        "No election, not even while a snapshot is taken; writes take as long as the disk.",
        SLOWED,
        (
            "system/test_kills.py::test_a_disk_that_takes_half_a_second_to_sync_causes_no_election",
            "system/test_kills.py::"
            "test_a_leader_with_a_slow_disk_takes_a_snapshot_and_trims_without_an_election",
        ),
    ),
    Fault(
        "Disks",
        "a full disk of the only node",
        "Writes are refused (DISK_FULL), reads go on, also after kill -9; with room writes go on.",
        DISKS,
        (
            "faults/test_full_disks.py::"
            "test_a_node_whose_disk_is_full_refuses_writes_keeps_all_and_goes_on_with_more_room",
        ),
    ),
    Fault(
        "Disks",
        "a full disk of a leader, or of a follower",
        "A leader refuses writes, reads on and can hand over; a follower is behind and catches up.",
        DISKS,
        (
            "faults/test_full_disks.py::"
            "test_a_leader_whose_disk_fills_refuses_reads_on_and_can_hand_over",
            "faults/test_full_disks.py::"
            "test_a_follower_whose_disk_fills_stays_behind_and_catches_up",
        ),
    ),
    Fault(
        "Disks",
        "a disk that fills in the midst of any operation",
        "The log stays intact, and a refused write never comes back.",
        SIMULATED_DISK,
        (
            "faults/test_bad_disks.py::"
            "test_a_disk_that_fills_in_the_midst_of_anything_keeps_the_log_intact",
            "faults/test_bad_disks.py::test_a_refused_group_never_comes_back",
        ),
    ),
    Fault(
        "Disks",
        "a write or a sync that fails",
        "The log ends, because nobody knows what is on the disk, and opens again without loss.",
        SIMULATED_DISK,
        (
            "faults/test_bad_disks.py::"
            "test_a_failed_write_or_sync_ends_the_log_until_it_is_opened_again",
        ),
    ),
    Fault(
        "Disks",
        "a disk that lies about syncs",
        "It is found out, or only a tail is lost.",
        SIMULATED_DISK,
        (
            "faults/test_bad_disks.py::"
            "test_a_disk_that_lies_about_syncs_is_found_out_or_loses_only_a_tail",
        ),
    ),
    Fault(
        "Disks",
        "bits of a sealed segment rot",
        "They are found, named and never served, and repaired from a peer while the node serves.",
        PROCESSES,
        (
            "system/test_rot.py::"
            "test_a_sealed_segment_that_rots_is_found_named_and_repaired_while_serving",
            "system/test_rot.py::test_a_range_that_nobody_has_stays_named",
        ),
    ),
    Fault(
        "Disks",
        "sealed segments are damaged or lost while a member is down",
        "The member starts, gets the range from members that have it, and then serves that shard. "
        "Until then it takes no part in Raft, and its other shards serve.",
        PROCESSES,
        (
            "system/test_damaged_start.py::test_a_member_is_repaired_before_it_serves",
            "system/test_damaged_start.py::"
            "test_damage_that_a_snapshot_covers_keeps_no_member_waiting",
            "system/test_damaged_start.py::test_a_member_waits_for_others_and_says_for_what",
            "system/test_damaged_start.py::test_two_of_three_members_repair_each_other",
            "system/test_damaged_start.py::"
            "test_other_shards_serve_while_one_waits_for_a_member_that_is_whole",
        ),
    ),
    Fault(
        "Disks",
        "power loss while a damaged log is repaired at the start",
        "The next start goes on, and ends with the same bytes.",
        SIMULATED_DISK,
        (
            "node/replica/test_start_repair.py::"
            "test_a_crash_after_any_file_operation_of_the_repair_is_made_good_by_the_next_start",
        ),
    ),
    Fault(
        "Disks",
        "a log that is damaged where no copy can replace it",
        "The node does not start, and names shard, file, entries and what to do (SHARD_DAMAGED). "
        "The others serve without it.",
        PROCESSES,
        (
            "system/test_damaged_start.py::test_a_member_alone_does_not_start_and_says_what_to_do",
            "system/test_damaged_start.py::"
            "test_a_member_with_a_damaged_unsealed_file_does_not_start",
            "onelog/cli/cluster/test_cluster_commands.py::"
            "test_a_node_that_cannot_start_keeps_the_others_from_nothing",
        ),
    ),
    Fault(
        "Clocks",
        "wall clocks jump an hour, forward or back, of the leader or of all",
        "Log time goes on and an alarm says so. Nothing ends early or late, and nobody is deposed.",
        CLOCKS,
        (
            "faults/test_clocks.py::"
            "test_a_clock_that_jumps_an_hour_ends_nothing_early_and_deposes_nobody",
        ),
    ),
    Fault(
        "Directories",
        "a data directory is removed or replaced while the node runs",
        "The node ends before it acknowledges another write (DIRECTORY_LOST).",
        PROCESSES,
        (
            "system/test_exhaustion.py::"
            "test_a_removed_data_directory_ends_the_node_before_another_put_is_acknowledged",
            "system/test_exhaustion.py::"
            "test_a_replaced_data_directory_ends_the_node_and_what_it_moved_is_whole",
        ),
    ),
    Fault(
        "Directories",
        "a member lost its directory and starts with an empty one",
        "It is refused until an operator removes the old member.",
        PROCESSES,
        (
            "system/test_exhaustion.py::"
            "test_a_member_that_lost_its_directory_is_not_let_in_under_its_name",
        ),
    ),
    Fault(
        "Directories",
        "a member lost the files of a shard",
        "It does not start: an empty replica would vote twice, and count for what it has lost.",
        PROCESSES,
        (
            "system/test_damaged_start.py::"
            "test_a_member_whose_shard_lost_its_files_does_not_begin_it_anew",
        ),
    ),
    Fault(
        "Resources",
        "no more file descriptors",
        "Idle connections cannot take those that the node needs. Without any, writes are refused, "
        "reads go on, and an alarm says so.",
        PROCESSES,
        (
            "system/test_exhaustion.py::"
            "test_idle_connections_use_up_no_descriptor_that_the_node_needs",
            "system/test_exhaustion.py::"
            "test_a_node_that_may_open_no_more_files_refuses_alarms_and_goes_on",
        ),
    ),
    Fault(
        "Resources",
        "no more memory",
        "A call is refused, or the node ends and says what it held; a restart has every write.",
        PROCESSES,
        (
            "system/test_exhaustion.py::"
            "test_a_node_without_memory_says_what_it_held_and_the_next_start_has_everything",
        ),
    ),
    Fault(
        "Floods",
        "30 floods of the port for clients, such as rapid resets and CONTINUATION frames",
        "The attacker is sent away or held back with bounded memory; other clients lose no call.",
        PROCESSES,
        (
            "attacks/test_attacks.py::"
            "test_a_client_that_breaks_a_rule_is_sent_away_and_others_go_on",
            "attacks/test_attacks.py::"
            "test_a_client_that_takes_all_that_is_allowed_keeps_nobody_else_waiting_forever",
        ),
    ),
    Fault(
        "Floods",
        "crowds: 10,000 idle connections, idle streams, handshakes that never end",
        "Nobody is kept out, and each costs little.",
        PROCESSES,
        (
            "attacks/test_attacks.py::test_idle_connections_cost_little_memory",
            "attacks/test_attacks.py::test_idle_streams_of_a_few_connections_keep_nobody_out",
            "attacks/test_attacks.py::test_handshakes_that_never_end_are_ended_and_keep_nobody_out",
        ),
    ),
    Fault(
        "Floods",
        "floods of the HTTP port and of the port for nodes",
        "The leader stays one, clients lose no call, and every probe is answered.",
        PROCESSES,
        (
            "system/test_exhaustion.py::"
            "test_a_leader_whose_other_ports_are_flooded_stays_one_and_serves",
            "system/test_exhaustion.py::"
            "test_a_probe_is_answered_beside_any_number_of_slow_connections",
        ),
    ),
    Fault(
        "Floods",
        "a client poses as the leader",
        "It is refused and learns nothing.",
        PROCESSES,
        (
            "system/test_identity.py::"
            "test_a_client_that_poses_as_the_leader_is_refused_and_told_nothing",
        ),
    ),
)
