//! A writer that half-closes its stream gets acknowledgements for all inserted items.

use crate::insert::{first_message, items_message, row_items, sample_values};
use crate::support::{connect, engine, one_item_queue, open_insert_stream, start, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn items_inserted_at_the_last_moment_are_acknowledged() {
    let engine = engine(vec![one_item_queue("full")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let full = engine.table("full").unwrap();
    let mut inserted_late = 0;
    for session in 0..300 {
        let mut stream = open_insert_stream(&mut client).await;
        stream.send(first_message(session)).await;
        stream
            .send(items_message([row_items("full", 1, 3, 1)]))
            .await;
        stream.wait_completed("full", 1).await;
        wait_until("the other items wait", || full.info().waiting_inserts == 1).await;
        // Half-closes the stream and, at nearly the same time, takes a sample, which makes room for an item.
        stream.half_close();
        let table = std::sync::Arc::clone(&full);
        let sampling = tokio::task::spawn_blocking(move || sample_values(&table, 1));
        let mut completed = 1;
        while let Some(response) = stream.next_response().await.unwrap() {
            completed = response.completed.last().unwrap().number;
        }
        assert_eq!(sampling.await.unwrap(), [100]);
        let size = full.info().stats.size;
        assert_eq!(completed, 1 + size, "in round {session}");
        inserted_late += size;
        if size > 0 {
            sample_values(&full, 1);
        }
    }
    assert!(inserted_late > 0, "no item was inserted during the race");
}
