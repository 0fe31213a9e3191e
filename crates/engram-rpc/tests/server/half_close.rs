//! A writer that has said its last hears of everything that its tables have.

use crate::insert::{opening, rows, sending, values};
use crate::support::{connect, engine, inserts, narrow, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn items_let_in_at_the_last_moment_are_told() {
    let engine = engine(vec![narrow("full")]);
    let server = start(&engine);
    let mut client = connect(&server).await;
    let full = engine.table("full").unwrap();
    let mut let_in = 0;
    for session in 0..300 {
        let mut stream = inserts(&mut client).await;
        stream.say(opening(session)).await;
        stream.say(sending([rows("full", 1, 3, 1)])).await;
        stream.settled("full", 1).await;
        until("two wait", || full.info().waiting_inserts == 1).await;
        // The end of the stream and room for an item, as nearly at once as may be.
        stream.requests = tokio::sync::mpsc::channel(1).0;
        let table = std::sync::Arc::clone(&full);
        let sampling = tokio::task::spawn_blocking(move || values(&table, 1));
        let mut told = 1;
        while let Some(news) = stream.end().await.unwrap() {
            told = news.completed.last().unwrap().number;
        }
        assert_eq!(sampling.await.unwrap(), [100]);
        let size = full.info().stats.size;
        assert_eq!(told, 1 + size, "in round {session}");
        let_in += size;
        if size > 0 {
            values(&full, 1);
        }
    }
    assert!(let_in > 0, "the race was never close");
}
