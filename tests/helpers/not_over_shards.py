"""The tests with `open_store` that cannot hold for a store that is sharded over three servers, each with the reason."""

import re

_REASONS = {
    "limits such as `max_size` and reasons of waits are those of each shard, and info has their sums": (
        "test_display.py::test_the_info_of_a_table_is_an_html_table",
        "test_table.py::test_info_has_every_field_with_its_value",
        "test_table.py::test_each_blocking_reason_has_its_text",
        "test_table.py::test_the_blocking_reason_mentions_items_in_unfinished_chunks",
        "test_sample.py::test_min_size_reports_its_progress",
        "test_sample.py::test_a_sample_whose_items_expire_while_it_waits_states_that_there_are_no_others",
        "test_sample.py::test_more_items_than_a_table_can_ever_provide_are_rejected",
        "test_at_least.py::test_n_may_exceed_what_a_table_can_hold_but_at_least_may_not",
        "test_threads.py::test_concurrent_calls_return_whole_items_and_keep_counters_consistent",
        "test_dataset.py::test_batches_that_can_never_be_available_are_rejected",
        "test_dataset.py::test_inserts_into_a_queue_wait_while_all_items_are_held",
        "test_dataset.py::test_inserts_replace_items_that_a_dataset_has_fetched",
        "test_long_wait.py::test_the_message_mentions_items_that_writers_have_not_sent",
    ),
    "each shard counts the calls that it rejects, and a sample asks several": (
        "test_users.py::test_rejected_calls_are_counted_by_error",
    ),
    "the items of several writers are on different shards, so there is no order among them": (
        "test_scan.py::test_items_of_several_writers_are_in_one_batch",
        "test_episode.py::test_a_structured_adder_creates_the_items_of_its_patterns",
        "test_td_errors.py::test_a_table_can_reject_priorities",
        "test_text.py::test_every_writer_stores_text",
        "test_round_trip.py::test_items_come_back_bit_for_bit",
        "test_insert_batch.py::test_with_time_axis_the_items_have_several_steps",
        "test_numpy.py::test_an_item_may_have_squeezed_even_and_ragged_columns",
        "test_pacing.py::test_abandoned_episodes_do_not_escape_the_bound",
    ),
    "samples that wait for items of any shard are served in any order, and keep what they have drawn": (
        "test_sample.py::test_waiting_calls_are_served_in_order",
        "test_sample.py::test_waiting_calls_continue_after_a_reset",
        "test_at_least.py::test_several_readers_take_turns",
        "test_at_least.py::test_a_reset_during_the_wait_restarts_it",
    ),
    "the number of items of a shard is known with a delay of up to 0.1 s, so a batch may be smaller than possible": (
        "test_dataset.py::test_available_items_are_yielded_however_short_the_timeout",
        "test_dataset.py::test_timeout_zero_yields_full_batches",
    ),
    "items of a sample that failed return shortly after its error": (
        "test_sample.py::test_a_late_sample_returns_its_items",
        "test_dataset.py::test_several_readers_receive_each_item_of_a_queue_once",
    ),
    "the error of a batch that is too large names the part of one shard": (
        "test_memory.py::test_a_padded_batch_of_terabytes_is_rejected",
        "test_memory.py::test_a_prefetched_batch_of_terabytes_is_rejected",
    ),
    "`insert` first asks the shards for their load, so other threads run before the array is protected": (
        "test_foreign_threads.py::test_an_array_is_not_resized_while_it_is_copied",
        "test_foreign_threads.py::test_an_array_that_another_thread_resizes_is_rejected_or_stored_whole",
    ),
    "the test uses the single server of a remote store": ("test_text.py::test_reverbs_api_returns_bytes_for_text",),
}


def reason_against_shards(node_id: str) -> str | None:
    """Returns why a test cannot hold; None if it can, or does not use shards."""
    match = re.fullmatch(r"(?:.*/)?(\w+\.py::\w+)\[.*\bsharded\b.*\]", node_id)
    name = match and match[1]
    return next((reason for reason, names in _REASONS.items() if name in names), None)
