//! dm-reverb's service: what goes back, what waits, and how much of it.

use crate::reverb::{ask, chunk, connect, inserts, item, request, samples, size, table};
use crate::support::{engine, queue, start, until};

/// The keys in a response.
fn keys(response: &engram_reverb::pb::SampleStreamResponse) -> Vec<u64> {
    let infos = response.entries.iter().flat_map(|entry| &entry.info);
    let items = infos.flat_map(|info| &info.item);
    items.map(|item| item.key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_got_of_a_batch_does_not_come_again() {
    let engine = engine(vec![queue("queue")]);
    let server = start(&engine);
    let mut client = connect(&server).await.max_decoding_message_size(64 << 20);
    let writer = inserts(&mut client).await;
    let (rows, count) = (1 << 18, 60);
    for key in 0..count {
        let (chunk, item) = (chunk(1, 0, rows), item(key, "queue", 1, 0, rows));
        let chunks = if key == 0 { vec![chunk] } else { Vec::new() };
        writer.say(request(chunks, vec![item], &[1])).await;
    }
    let queue = table(&engine, "queue");
    until("all are in", || size(&queue) == count).await;
    let mut reader = samples(&mut client).await;
    reader.say(ask("queue", 60, 0)).await;
    let mut seen = keys(&reader.hear().await);
    seen.extend(keys(&reader.hear().await));
    assert_eq!(seen, [0, 1, 2, 3]);
    drop(reader);
    until("the rest goes back", || {
        let stats = queue.info().stats;
        stats.hidden == 0 && stats.size < count
    })
    .await;
    // What was handed to the transport is used up, be it read or not.
    assert!(size(&queue) > count / 2, "{}", size(&queue));
    let left = size(&queue);
    let mut other = samples(&mut client).await;
    other.say(ask("queue", 1, 0)).await;
    assert_eq!(keys(&other.hear().await), [count - left]);
}
